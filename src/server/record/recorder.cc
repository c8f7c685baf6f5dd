#include "server/record/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <exception>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "server/api/json_body.h"

namespace switchyard {
namespace {

constexpr size_t kShownBytes = 2048;

// Endpoints that run the model. Other requests, such as scrapes of metrics, are not recorded.
bool RunsModel(const http::Request& request) {
  constexpr std::array<std::string_view, 6> kNative = {"/generate", "/encode", "/classify",
                                                       "/score",    "/rerank", "/v2/rerank"};
  if (request.method != "POST") return false;
  return request.path.starts_with("/v1/") ||
         std::ranges::find(kNative, request.path) != kNative.end();
}

// Fields that hold the prompt.
bool IsPrompt(std::string_view field) {
  constexpr std::array<std::string_view, 9> kPrompts = {
      "text", "input_ids", "prompt", "messages", "input", "tools", "query", "documents", "system"};
  return std::ranges::find(kPrompts, field) != kPrompts.end();
}

// Text beyond the limits of request bodies stays text: as a value, it could overflow the stack of
// Dump, and each of its keys takes linear time.
Json ParsedOrText(const std::string& text) {
  try {
    return jinja::ParseExactJson(text, "text", kBodyLimits, [](std::string_view) { return false; });
  } catch (const std::exception&) {
    return text;
  }
}

// Text is written as a JSON string, because its line feeds would begin forged lines of the log.
std::string Shown(const Json& value, bool whole) {
  std::string text = Dump(value);
  if (whole || text.size() <= kShownBytes) return text;
  text.resize(kShownBytes);
  return text + "…";
}

double Seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

// "KIND-20250102-030405-PID.jsonl", with a number if the file exists already.
std::filesystem::path NewFile(const std::filesystem::path& folder, const char* kind) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char digits[32];
  std::strftime(digits, sizeof digits, "%Y%m%d-%H%M%S", &utc);
  for (int n = 0;; ++n) {
    const std::string more = n == 0 ? "" : fmt::format("-{}", n);
    const auto file = folder / fmt::format("{}-{}-{}{}.jsonl", kind, digits, getpid(), more);
    std::error_code error;  // then the file cannot be opened either
    if (!std::filesystem::exists(file, error)) return file;
  }
}

}  // namespace

void CheckRecordFolder(const std::string& folder, const char* what) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || access(folder.c_str(), W_OK | X_OK) != 0)
    throw Resource("{} {}: cannot be written", what, folder);
}

size_t RecordedRequest::bytes() const {
  constexpr size_t kOther = 1024;
  return kOther + request->body.size() + response.size();
}

std::optional<Json> RecordJson(const RecordedRequest& record) {
  Json body = ParsedOrText(record.request->body);
  if (body.is_object() && body.contains("no_logs") && body["no_logs"] == true) return std::nullopt;
  Json line = {{"id", record.request->id},
               {"time", Seconds(record.time)},
               {"method", record.request->method},
               {"path", record.request->path},
               {"request", std::move(body)}};
  if (record.open) return line;
  line["seconds"] = record.seconds;
  line["status"] = record.status;
  line["response"] = ParsedOrText(record.response);
  if (record.truncated) line["response_truncated"] = true;
  return line;
}

std::string RecordLine(const Json& record, int level) {
  Json request = record.value("request", Json());
  if (level < 2 && request.is_object()) {
    Json fields = Json::object();
    for (const auto& [name, value] : request.items())
      if (!IsPrompt(name)) fields[name] = value;
    request = std::move(fields);
  }
  std::string line =
      fmt::format("http: {} request {}", record.value("id", std::string()),
                  level < 2 && !request.is_object() ? "" : Shown(request, level > 2));
  if (level >= 2)
    line += fmt::format(", response {}", Shown(record.value("response", Json()), level > 2));
  return line;
}

Recorder::Recorder(Options options, std::shared_ptr<const http::RequestLog> logs)
    : tracer_(std::move(options.tracer)), logs_(std::move(logs)) {
  Configure(options.log_level, options.dump_folder, options.crash_folder);
  thread_ = std::thread([this] { Run(); });
}

Recorder::~Recorder() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  news_.notify_all();
  thread_.join();
}

void Recorder::Configure(std::optional<int> log_level, std::optional<std::string> dump_folder,
                         std::optional<std::string> crash_folder) {
  if (dump_folder) CheckRecordFolder(*dump_folder, "--dump-requests-folder");
  if (crash_folder) CheckRecordFolder(*crash_folder, "--crash-dump-folder");
  std::lock_guard lock(mutex_);
  if (log_level) level_ = *log_level;
  if (dump_folder) dump_folder_ = *std::move(dump_folder);
  if (crash_folder) crash_folder_ = *std::move(crash_folder);
  has_folder_ = !dump_folder_.empty() || !crash_folder_.empty();
  if (!crash_folder_.empty()) return;
  open_.clear();
  recent_.clear();
  recent_bytes_ = 0;
}

bool Recorder::keeps(const http::Request& request) const {
  const bool logs = level_ > 0 && logs_->enabled;
  return (has_folder_ || logs) && RunsModel(request);
}

size_t Recorder::kept_bytes() const {
  const bool logs = level_ > 1 && logs_->enabled;
  return has_folder_ || logs ? kMaxResponse : 0;
}

void Recorder::OnRequest(const std::shared_ptr<const http::Request>& request) {
  std::lock_guard lock(mutex_);
  if (crash_folder_.empty()) return;
  open_[request.get()] = {
      .request = request, .time = std::chrono::system_clock::now(), .open = true};
}

void Recorder::OnServed(const http::ServedRequest& served) {
  if (tracer_) tracer_->AddRequest(served);
  const std::shared_ptr<const http::Request>& request = served.request;
  if (!served.kept) return;
  const auto time = served.end - served.begin;
  // A copy, because the memory of the request counts towards --http-memory-limit.
  auto copy = std::make_shared<http::Request>();
  copy->id = request->id;
  copy->method = request->method;
  copy->path = request->path;
  copy->body = request->body;
  RecordedRequest record{
      .request = std::move(copy),
      .time = std::chrono::system_clock::now() -
              std::chrono::duration_cast<std::chrono::system_clock::duration>(time),
      .seconds = std::chrono::duration<double>(time).count(),
      .status = served.status,
      .response = served.response,
      .truncated = served.response_truncated};
  {
    std::lock_guard lock(mutex_);
    open_.erase(request.get());
    if (!crash_folder_.empty()) {
      recent_bytes_ += record.bytes();
      recent_.push_back(record);
      Forget();
    }
    if (dump_folder_.empty() && (level_ == 0 || !logs_->enabled)) return;
    if (queue_bytes_ + record.bytes() > kMaxBytes) {
      if (dropped_++ == 0)
        LOG_WARNING("records of requests are dropped, because they cannot be written fast enough");
      return;
    }
    queue_bytes_ += record.bytes();
    queue_.push_back(std::move(record));
  }
  news_.notify_one();
}

void Recorder::Forget() {
  const auto oldest = std::chrono::system_clock::now() - kRecent;
  while (!recent_.empty() && (recent_bytes_ > kMaxBytes || recent_.front().time < oldest)) {
    recent_bytes_ -= recent_.front().bytes();
    recent_.pop_front();
  }
}

void Recorder::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    news_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    RecordedRequest record = std::move(queue_.front());
    queue_.pop_front();
    queue_bytes_ -= record.bytes();
    const int level = logs_->enabled ? level_.load() : 0;
    const std::string folder = dump_folder_;
    lock.unlock();
    try {
      Write(record, level, folder);
    } catch (const std::exception& e) {
      ++dropped_;
      LOG_ERROR("the record of request {} was not written: {}", record.request->id, e.what());
    }
    record = {};  // the request's memory is released without the lock
    lock.lock();
  }
}

void Recorder::Write(const RecordedRequest& record, int level, const std::string& folder) {
  const std::optional<Json> json = RecordJson(record);
  if (!json) return;
  if (level > 0) LOG_INFO("{}", RecordLine(*json, level));
  if (folder != file_folder_) {
    file_ = std::ofstream();
    file_folder_ = folder;
    if (!folder.empty()) file_.open(NewFile(folder, "requests"));
  }
  if (folder.empty()) return;
  file_ << Dump(*json) << '\n' << std::flush;
  if (!file_ && dropped_++ == 0)
    LOG_ERROR("--dump-requests-folder {}: a file cannot be written", folder);
}

void Recorder::WriteCrash(const std::string& why) {
  try {
    WriteRecent(why);
  } catch (const std::exception& e) {
    LOG_ERROR("--crash-dump-folder: requests were not written: {}", e.what());
  }
}

void Recorder::WriteRecent(const std::string& why) {
  std::vector<RecordedRequest> records;
  std::string folder;
  {
    std::lock_guard lock(mutex_);
    if (crash_folder_.empty()) return;
    folder = crash_folder_;
    Forget();
    records.assign(recent_.begin(), recent_.end());
    for (const auto& [request, record] : open_) records.push_back(record);
  }
  std::ranges::sort(records, {}, &RecordedRequest::time);
  const std::filesystem::path file = NewFile(folder, "crash");
  const std::filesystem::path unfinished = file.string() + ".part";
  size_t count = 0;
  {
    std::ofstream out(unfinished);
    for (const RecordedRequest& record : records) {
      const std::optional<Json> json = RecordJson(record);
      if (!json) continue;
      out << Dump(*json) << '\n';
      ++count;
    }
    out.flush();
    if (!out) return LOG_ERROR("--crash-dump-folder {}: a file cannot be written", folder);
  }
  std::error_code error;
  std::filesystem::rename(unfinished, file, error);
  LOG_WARNING("{}: {} requests are in {}", why, count, file.string());
}

}  // namespace switchyard
