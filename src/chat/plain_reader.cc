#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "chat/line_reader.h"
#include "core/error.h"

namespace switchyard::chat {
namespace {

class PlainReader : public LineReader {
 public:
  PlainReader(Signals& signals, bool terminal) : signals_(signals), terminal_(terminal) {}

  InputLine Read(const std::string& prompt) override {
    if (terminal_) {
      std::fputs((prompt + " ").c_str(), stdout);  // the terminal may be closed
      std::fflush(stdout);
    }
    try {
      return ReadLine();
    } catch (const Interrupted& end) {
      if (!terminal_ || end.signal != SIGINT) throw;
      std::fputs("\n", stdout);
      return {InputLine::Kind::kCancelled, {}};
    }
  }

  void Remember(const std::string&) override {}

 private:
  InputLine ReadLine() {
    size_t searched = 0;
    while (true) {
      const size_t end = buffer_.find('\n', searched);
      if (end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return {InputLine::Kind::kText, std::move(line)};
      }
      searched = buffer_.size();
      if (!Fill()) break;
    }
    if (buffer_.empty()) return {};
    return {InputLine::Kind::kText, std::exchange(buffer_, {})};  // a last line without an end
  }

  bool Fill() {
    while (true) {
      signals_.Wait(STDIN_FILENO, POLLIN);
      char bytes[16 << 10];
      const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
      if (count > 0) buffer_.append(bytes, count);
      if (count >= 0) return count > 0;
      if (errno == EIO) return false;  // the terminal has been closed
      if (errno != EINTR && errno != EAGAIN)
        throw Resource("standard input: {}", std::strerror(errno));
    }
  }

  Signals& signals_;
  const bool terminal_;
  std::string buffer_;  // read, not yet returned
};

}  // namespace

std::unique_ptr<LineReader> MakePlainReader(Signals& signals, bool terminal) {
  return std::make_unique<PlainReader>(signals, terminal);
}

}  // namespace switchyard::chat
