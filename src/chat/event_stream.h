// Server-sent events, as the HTML standard defines them (section 9.2.6), in a body that arrives in
// pieces.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace switchyard::chat {

class EventStream {
 public:
  // Longest line and longest data of an event in bytes; longer ones are an Error kPeer.
  static constexpr size_t kMaxEvent = size_t{64} << 20;

  // Calls `event` with the data of each event that the bytes complete. Comments, empty events and
  // fields other than "data" are skipped.
  void Feed(std::string_view bytes, const std::function<void(std::string_view data)>& event);

 private:
  void TakeLine(const std::function<void(std::string_view)>& event);

  std::string line_;           // begin of a line without its end
  std::string data_;           // lines of the event's data
  bool has_data_ = false;      // the event has a data line, which may be empty
  bool after_return_ = false;  // the last byte was \r; a following \n belongs to the same line end
};

}  // namespace switchyard::chat
