#include "core/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/log_queue.h"

namespace switchyard {
namespace {

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// The text with escapes instead of control characters. A message may have parts from clients, such
// as the path of a request, which must not add lines or terminal commands to the log.
std::string OneLine(const std::string& text) {
  constexpr auto is_control = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  };
  if (std::ranges::none_of(text, is_control)) return text;
  std::string line;
  for (const char c : text) {
    if (c == '\n')
      line += "\\n";
    else if (is_control(c))
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      line += c;
  }
  return line;
}

}  // namespace

bool Logs(LogLevel level) { return spdlog::default_logger_raw()->should_log(SpdlogLevel(level)); }

void WriteLog(LogLevel level, fmt::string_view format, fmt::format_args args) {
  spdlog::default_logger_raw()->log(SpdlogLevel(level), OneLine(fmt::vformat(format, args)));
}

void InitLog(const std::string& level, const std::string& who) {
  const auto parsed = level == "warning" ? spdlog::level::warn : spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    throw Invalid("--log-level {}: want debug, info, warning or error", level);
  }
  auto logger = spdlog::get("switchyard");
  if (!logger) logger = spdlog::stderr_color_mt("switchyard");
  logger->set_level(parsed);
  logger->set_pattern(who.empty() ? "[%Y-%m-%d %H:%M:%S] %^%l%$ %v"
                                  : "[%Y-%m-%d %H:%M:%S " + who + "] %^%l%$ %v");
  spdlog::set_default_logger(logger);
}

LogCapture::LogCapture(std::ostream& to) : before_(spdlog::default_logger()) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "capture", std::make_shared<spdlog::sinks::ostream_sink_mt>(to)));
}

LogCapture::~LogCapture() {
  spdlog::set_default_logger(std::static_pointer_cast<spdlog::logger>(before_));
}

void SetLogLevel(const std::string& level) {
  const auto parsed = level == "warning" ? spdlog::level::warn : spdlog::level::from_str(level);
  if (parsed == spdlog::level::off)
    throw Invalid("log level {}: want debug, info, warning or error", level);
  spdlog::default_logger_raw()->set_level(parsed);
}

namespace {

constexpr size_t kMaxLines = 8192;

// Owned by the sink and the writer thread together. The thread is detached, because it may still be
// blocked on stderr when the process ends.
struct LineQueue {
  std::mutex mutex;
  std::condition_variable news, written;
  std::deque<std::string> lines;
  size_t dropped = 0;
  bool writing = false;

  void Push(std::string line) {
    {
      std::lock_guard lock(mutex);
      if (lines.size() >= kMaxLines) {
        ++dropped;
        return;
      }
      lines.push_back(std::move(line));
    }
    news.notify_one();
  }

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      writing = false;
      written.notify_all();
      news.wait(lock, [this] { return !lines.empty(); });
      std::string text = std::move(lines.front());
      lines.pop_front();
      if (lines.empty() && dropped > 0)
        text += fmt::format("({} lines of the log were dropped: stderr was blocked)\n",
                            std::exchange(dropped, 0));
      writing = true;
      lock.unlock();
      for (size_t at = 0; at < text.size();) {
        const ssize_t count = write(STDERR_FILENO, text.data() + at, text.size() - at);
        if (count < 0 && errno != EINTR && errno != EAGAIN) break;
        if (count > 0) at += static_cast<size_t>(count);
      }
      lock.lock();
    }
  }
};

class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(std::shared_ptr<LineQueue> queue) : queue_(std::move(queue)) {}
  const std::shared_ptr<LineQueue>& queue() const { return queue_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    queue_->Push(std::string(text.data(), text.size()));
  }
  void flush_() override {}

  std::shared_ptr<LineQueue> queue_;
};

}  // namespace

void QueueLog() {
  const auto logger = spdlog::default_logger();
  const auto queue = std::make_shared<LineQueue>();
  const auto sink = std::make_shared<QueueSink>(queue);
  // The pattern of InitLog for the front (no `who`), without colors.
  sink->set_pattern("[%Y-%m-%d %H:%M:%S] %l %v");
  logger->sinks() = {sink};
  std::thread([queue] { queue->Run(); }).detach();
}

void FlushLog(std::chrono::milliseconds limit) {
  const auto logger = spdlog::default_logger();
  for (const auto& sink : logger->sinks()) {
    const auto* queued = dynamic_cast<const QueueSink*>(sink.get());
    if (!queued) continue;
    LineQueue& queue = *queued->queue();
    std::unique_lock lock(queue.mutex);
    queue.written.wait_for(lock, limit, [&] { return queue.lines.empty() && !queue.writing; });
  }
}

}  // namespace switchyard
