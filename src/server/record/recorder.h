// Records of requests: their text in the log, files of requests and responses, and files that are
// written when ranks end.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/api/json_body.h"
#include "server/http/served_request.h"
#include "server/trace/tracer.h"

namespace switchyard {

// One request to an endpoint that runs the model, with its response.
struct RecordedRequest {
  std::shared_ptr<const http::Request> request;
  std::chrono::system_clock::time_point time;  // when the request was complete
  double seconds = 0;                          // until the end of the response
  bool open = false;                           // the response has not ended
  int status = 0;
  std::string response;  // payload, also of an incomplete response
  bool truncated = false;

  size_t bytes() const;
};

// One line of a file: {"id", "time", "method", "path", "request", and if it is not open "seconds",
// "status", "response"}. `request` and `response` are JSON, or text if they are not JSON, such as
// the events of a stream, or exceed kBodyLimits. nullopt: the request has "no_logs": true, so its
// text is not recorded.
std::optional<Json> RecordJson(const RecordedRequest& record);

// What --log-requests-level shows: at level 1 the fields of the request without its prompt; at
// level 2 all fields and the response, each reduced to 2048 bytes; at level 3 all of both. One
// line: what is not JSON is written as a JSON string.
std::string RecordLine(const Json& record, int level);

// Creates the folder. Throws Error kResource that begins with `what` if it cannot be written. An
// empty name is accepted.
void CheckRecordFolder(const std::string& folder, const char* what);

// Gets all requests of the HTTP server. Files and log lines are written by a thread of its own,
// from a bounded queue, so that no request waits for them; if the queue is full, records are
// dropped and counted. Any thread may call any member.
class Recorder : public http::RequestObserver {
 public:
  struct Options {
    std::string dump_folder;   // one line for each ended request; empty: none
    std::string crash_folder;  // see WriteCrash; empty: none
    int log_level = 0;
    std::shared_ptr<trace::Tracer> tracer;  // null: requests are not traced
  };
  // Records in memory for WriteCrash, and waiting for the writer.
  static constexpr size_t kMaxBytes = size_t{128} << 20;
  static constexpr std::chrono::minutes kRecent{5};
  static constexpr size_t kMaxResponse = size_t{4} << 20;  // of one request

  // `logs`: whether requests are logged at all; log_level applies then. Throws Error kResource if a
  // folder cannot be written.
  Recorder(Options options, std::shared_ptr<const http::RequestLog> logs);
  ~Recorder() override;  // writes the queue

  // nullopt keeps a value. Throws Error kResource if a folder cannot be written.
  void Configure(std::optional<int> log_level, std::optional<std::string> dump_folder,
                 std::optional<std::string> crash_folder);

  // Writes the requests that are open now or have ended within kRecent to a new file in the crash
  // folder, and logs its name. No effect without a crash folder. Does not throw.
  void WriteCrash(const std::string& why);

  bool traces() const override { return tracer_ != nullptr; }
  // Requests that run the model, if a folder is set or their text is logged.
  bool keeps(const http::Request& request) const override;
  size_t kept_bytes() const override;  // above 0 if responses are logged or a folder is set
  void OnRequest(const std::shared_ptr<const http::Request>& request) override;
  void OnServed(const http::ServedRequest& served) override;

  uint64_t dropped() const { return dropped_; }

 private:
  void Forget();                             // removes old records; requires mutex_
  void WriteRecent(const std::string& why);  // as WriteCrash, but may throw
  void Run();
  void Write(const RecordedRequest& record, int level, const std::string& folder);

  const std::shared_ptr<trace::Tracer> tracer_;
  const std::shared_ptr<const http::RequestLog> logs_;
  std::atomic<bool> has_folder_{false};
  std::atomic<int> level_{0};
  std::atomic<uint64_t> dropped_{0};

  mutable std::mutex mutex_;  // guards the members below
  std::string dump_folder_, crash_folder_;
  std::map<const http::Request*, RecordedRequest> open_;
  std::deque<RecordedRequest> recent_;  // ended requests, for WriteCrash
  size_t recent_bytes_ = 0, queue_bytes_ = 0;
  std::deque<RecordedRequest> queue_;
  std::condition_variable news_;
  bool ends_ = false;

  // Of the writer's thread.
  std::ofstream file_;
  std::string file_folder_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace switchyard
