#include "chat/event_stream.h"

#include "core/error.h"

namespace switchyard::chat {

void EventStream::Feed(std::string_view bytes, const std::function<void(std::string_view)>& event) {
  for (const char c : bytes) {
    if (c == '\n' && after_return_) {
      after_return_ = false;
      continue;
    }
    after_return_ = c == '\r';
    if (c == '\n' || c == '\r') {
      TakeLine(event);
    } else {
      line_ += c;
      if (line_.size() + data_.size() > kMaxEvent)
        throw Error(ErrorKind::kPeer, "the server sent an event of more than 64 MiB");
    }
  }
}

void EventStream::TakeLine(const std::function<void(std::string_view)>& event) {
  const std::string line = std::exchange(line_, {});
  if (line.empty()) {
    const std::string data = std::exchange(data_, {});
    if (std::exchange(has_data_, false)) event(data);
    return;
  }
  std::string_view value = line;
  constexpr std::string_view kData = "data";
  if (!value.starts_with(kData)) return;
  value.remove_prefix(kData.size());
  if (!value.empty() && !value.starts_with(':')) return;  // another field, such as "database"
  if (value.starts_with(':')) value.remove_prefix(1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  has_data_ = true;
  data_ += value;
}

}  // namespace switchyard::chat
