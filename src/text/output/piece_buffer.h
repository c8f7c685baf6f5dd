// Text that arrives in pieces and is consumed from the front, with search for markers.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

// The unprocessed text of one parser. Appending, searching and consuming take linear time in total,
// however the text is cut into pieces. Views of rest() are valid until the next change.
class PieceBuffer {
 public:
  void Append(std::string_view piece);
  void End() { ended_ = true; }  // no piece will follow
  bool ended() const { return ended_; }

  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  bool empty() const { return at_ == text_.size(); }
  void Consume(size_t bytes);
  void ConsumeSpace();  // leading white space

  // The position of the earliest marker in rest(), and the marker. If rest() has no complete
  // marker, `marker` is empty, and `begin` is the length of the text that cannot be part of a
  // marker.
  struct Found {
    size_t begin = 0;
    std::string_view marker;
  };
  // No marker may be a prefix of another one. The list must outlive the buffer, because a repeated
  // search with the same list continues where the last one ended.
  Found Find(std::span<const std::string_view> markers);

  enum class Match { kYes, kNo, kPartly };  // kPartly: rest() is a proper prefix of the marker
  Match StartsWith(std::string_view marker) const;

 private:
  std::string text_;
  size_t at_ = 0;                           // start of rest()
  const std::string_view* last_ = nullptr;  // markers of the last search
  size_t searched_ = 0;                     // bytes of rest() that the last search has covered
  bool ended_ = false;
};

}  // namespace switchyard
