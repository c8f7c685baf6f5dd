#include "bench/serve/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "bench/serve/answer_stream.h"
#include "core/error.h"

namespace switchyard::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::use_awaitable;
using Clock = std::chrono::steady_clock;
using Parser = http::response_parser<http::string_body>;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The message without the source location that system_error's what() contains.
std::string ErrorText(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const boost::system::system_error& e) {
    return e.code().message();
  } catch (const std::exception& e) {
    return e.what();
  }
}

http::request<http::string_body> RequestOf(const ServeOptions& o, http::verb verb,
                                           const std::string& path, std::string body) {
  http::request<http::string_body> request(verb, path, 11);
  request.set(http::field::host, fmt::format("{}:{}", o.host, o.port));
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = std::move(body);
  request.prepare_payload();
  return request;
}

// Connects, sends, and reads the response header. The stream's deadline covers the whole request.
awaitable<void> Send(beast::tcp_stream& stream, const ServeOptions& o,
                     const http::request<http::string_body>& request, beast::flat_buffer& buffer,
                     Parser& parser) {
  asio::ip::tcp::resolver resolver(stream.get_executor());
  const auto where = co_await resolver.async_resolve(o.host, std::to_string(o.port), use_awaitable);
  stream.expires_after(std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(o.timeout_seconds)));
  co_await stream.async_connect(where, use_awaitable);
  co_await http::async_write(stream, request, use_awaitable);
  parser.body_limit(boost::none);
  co_await http::async_read_header(stream, buffer, parser, use_awaitable);
}

awaitable<std::string> AskOnce(const ServeOptions& o, http::verb verb, const std::string& path,
                               const std::string& body) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  beast::flat_buffer buffer;
  Parser parser;
  const auto request = RequestOf(o, verb, path, body);
  co_await Send(stream, o, request, buffer, parser);
  co_await http::async_read(stream, buffer, parser, use_awaitable);
  if (parser.get().result() != http::status::ok)
    throw Error(ErrorKind::kPeer, fmt::format("{} returned {}: {}", path, parser.get().result_int(),
                                              parser.get().body()));
  co_return std::move(parser.get().body());
}

class LoadRunner {
 public:
  LoadRunner(const ServeOptions& options, const std::vector<PlannedRequest>& plan,
             const std::function<void(int, int)>& progress)
      : options_(options), plan_(plan), progress_(progress), run_{.records = {}} {
    run_.records.resize(plan.size());
  }

  LoadRun Run() {
    const size_t limit =
        options_.max_concurrency > 0 ? static_cast<size_t>(options_.max_concurrency) : plan_.size();
    start_ = Clock::now();
    // Each worker has one request in flight; a free worker takes the next planned one.
    for (size_t i = 0; i < std::min(limit, plan_.size()); ++i)
      asio::co_spawn(io_, Work(), [](const std::exception_ptr& error) {
        if (error) std::rethrow_exception(error);
      });
    io_.run();
    run_.seconds = Since(start_);
    return std::move(run_);
  }

 private:
  awaitable<void> Work() {
    while (next_ < plan_.size()) {
      const size_t i = next_++;
      asio::steady_timer timer(io_);
      timer.expires_at(start_ + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(plan_[i].at)));
      co_await timer.async_wait(use_awaitable);
      RequestRecord& record = run_.records[i];
      record.sent = Since(start_);
      try {
        co_await Generate(plan_[i], record);
      } catch (...) {
        record.error = ErrorText(std::current_exception());
      }
      failed_ += !record.error.empty();
      progress_(++done_, failed_);
    }
  }

  awaitable<void> Generate(const PlannedRequest& planned, RequestRecord& record) {
    beast::tcp_stream stream(io_);
    beast::flat_buffer buffer;
    Parser parser;
    const bool recorded = !planned.path.empty();
    const std::string path = recorded ? planned.path : PathOf(options_);
    const auto request = RequestOf(options_, http::verb::post, path,
                                   recorded ? planned.body : BodyOf(options_, planned));
    co_await Send(stream, options_, request, buffer, parser);
    if (parser.get().result() != http::status::ok) {
      co_await http::async_read(stream, buffer, parser, use_awaitable);
      record.error = fmt::format("{}: {}", parser.get().result_int(), parser.get().body());
      co_return;
    }
    AnswerStream answer(path);
    while (!parser.is_done()) {
      co_await http::async_read_some(stream, buffer, parser, use_awaitable);
      const int64_t tokens = answer.Take(parser.get().body());
      if (tokens > 0) Count(tokens, record);
    }
    record.output_tokens = answer.output_tokens();
    record.prompt_tokens = answer.prompt_tokens();
    record.error = answer.error();
    if (record.error.empty() && !answer.done()) record.error = "the stream ended too early";
    if (record.error.empty() && record.output_tokens == 0) record.error = "no token came";
  }

  void Count(int64_t tokens, RequestRecord& record) const {
    const double now = Since(start_);
    if (record.first == 0.0) {
      record.first = now;
      --tokens;  // the first token event has no gap before it
      record.gaps.insert(record.gaps.end(), tokens, 0.0);
    } else {
      const double gap = (now - record.last) / static_cast<double>(tokens);
      record.gaps.insert(record.gaps.end(), tokens, gap);
    }
    record.last = now;
  }

  const ServeOptions& options_;
  const std::vector<PlannedRequest>& plan_;
  const std::function<void(int, int)>& progress_;
  asio::io_context io_{1};
  LoadRun run_;
  Clock::time_point start_;
  size_t next_ = 0;
  int done_ = 0, failed_ = 0;
};

}  // namespace

std::string Ask(const ServeOptions& options, const std::string& method, const std::string& path,
                const std::string& body) {
  asio::io_context io(1);
  std::string answer;
  std::string failure;
  const auto verb = method == "POST" ? http::verb::post : http::verb::get;
  asio::co_spawn(io, AskOnce(options, verb, path, body),
                 [&](const std::exception_ptr& error, std::string got) {
                   answer = std::move(got);
                   if (error) failure = ErrorText(error);
                 });
  io.run();
  if (!failure.empty())
    throw Error(ErrorKind::kPeer,
                fmt::format("http://{}:{}{}: {}", options.host, options.port, path, failure),
                "is a server running there? See --host and --port");
  return answer;
}

LoadRun RunLoad(const ServeOptions& options, const std::vector<PlannedRequest>& plan,
                const std::function<void(int done, int failed)>& progress) {
  return LoadRunner(options, plan, progress).Run();
}

}  // namespace switchyard::bench
