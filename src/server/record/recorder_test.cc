#include "server/record/recorder.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/log.h"
#include "core/temporary_directory.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RecorderTest : public ::testing::Test {
 protected:
  std::shared_ptr<const http::Request> Request(const std::string& id, const std::string& body,
                                               const std::string& path = "/generate") {
    auto request = std::make_shared<http::Request>();
    request->method = "POST";
    request->path = path;
    request->id = id;
    request->body = body;
    request->headers = {{"Host", "a"}, {"Authorization", "Bearer secret"}};
    return request;
  }
  static void Serve(Recorder& recorder, const std::shared_ptr<const http::Request>& request,
                    const std::string& response) {
    const auto now = std::chrono::steady_clock::now();
    const std::string route = request->path;
    recorder.OnServed({.request = request,
                       .route = route,
                       .status = 200,
                       .tokens = {},
                       .begin = now - std::chrono::seconds(1),
                       .end = now,
                       .response = response,
                       .kept = recorder.keeps(*request)});
  }
  // The lines of all files whose name begins with `kind`.
  std::vector<Json> Lines(const std::string& kind) const {
    std::vector<Json> lines;
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(dir_))
      if (entry.path().filename().string().starts_with(kind)) files.insert(entry.path());
    for (const auto& file : files) {
      EXPECT_EQ(file.extension(), ".jsonl");
      std::ifstream in(file);
      for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    }
    return lines;
  }

  const TemporaryDirectory temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
  std::shared_ptr<http::RequestLog> logs_ = std::make_shared<http::RequestLog>();
};

TEST_F(RecorderTest, ARequestAndItsResponseAreOneLine) {
  {
    Recorder recorder({.dump_folder = dir_}, logs_);
    EXPECT_GT(recorder.kept_bytes(), 0u);
    const auto first = Request("a", R"({"text": "x"})");
    recorder.OnRequest(first);
    Serve(recorder, first, R"({"text": "y"})");
    Serve(recorder, Request("b", "no JSON"), "data: {}\n\n");
    Serve(recorder, Request("c", R"({"text": "x", "no_logs": true})"), "{}");
    Serve(recorder, Request("d", "{}", "/flush_cache"), "{}");
  }
  const std::vector<Json> lines = Lines("requests");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["id"], "a");
  EXPECT_EQ(lines[0]["path"], "/generate");
  EXPECT_EQ(lines[0]["request"], Json::parse(R"({"text": "x"})"));
  EXPECT_EQ(lines[0]["response"], Json::parse(R"({"text": "y"})"));
  EXPECT_EQ(lines[0]["status"], 200);
  EXPECT_EQ(lines[1]["request"], "no JSON");
  EXPECT_EQ(lines[1]["response"], "data: {}\n\n");
  EXPECT_THAT(lines[0].dump(), Not(HasSubstr("secret")));
}

TEST_F(RecorderTest, ACrashFileHasOpenAndEndedRequests) {
  Recorder recorder({.crash_folder = dir_}, logs_);
  const auto open = Request("open", R"({"text": "o"})"), ended = Request("ended", R"({})");
  recorder.OnRequest(ended);
  Serve(recorder, ended, "{}");
  recorder.OnRequest(open);
  recorder.WriteCrash("rank 1 was killed");
  const std::vector<Json> lines = Lines("crash");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["id"], "ended");
  EXPECT_EQ(lines[1]["id"], "open");
  EXPECT_FALSE(lines[1].contains("response"));
  recorder.Configure(std::nullopt, std::nullopt, "");
  EXPECT_EQ(recorder.kept_bytes(), 0u);
  recorder.WriteCrash("again");
  EXPECT_EQ(Lines("crash").size(), 2u);
}

TEST_F(RecorderTest, NothingIsKeptWithoutAFolderOrALog) {
  Recorder recorder({.log_level = 2}, logs_);
  const auto request = Request("a", "{}"), flush = Request("b", "{}", "/flush_cache");
  EXPECT_FALSE(recorder.keeps(*request));
  EXPECT_EQ(recorder.kept_bytes(), 0u);
  logs_->enabled = true;
  EXPECT_TRUE(recorder.keeps(*request));
  EXPECT_FALSE(recorder.keeps(*flush));
  EXPECT_GT(recorder.kept_bytes(), 0u);
  recorder.Configure(1, std::nullopt, std::nullopt);
  EXPECT_TRUE(recorder.keeps(*request));
  EXPECT_EQ(recorder.kept_bytes(), 0u);  // level 1 shows no responses
  recorder.Configure(0, std::nullopt, std::nullopt);
  EXPECT_FALSE(recorder.keeps(*request));
  EXPECT_EQ(recorder.kept_bytes(), 0u);
  std::ofstream(dir_ / "file") << "x";
  EXPECT_THROW(recorder.Configure(0, (dir_ / "file").string(), std::nullopt), Error);
}

// As values, they would overflow the stack, or take minutes to parse.
TEST_F(RecorderTest, DeepAndWideTextRemainsText) {
  const std::string deep(100'000, '[');
  std::string closed = deep + std::string(deep.size(), ']'), wide = "{";
  for (int i = 0; i < 100'000; ++i) wide += fmt::format("\"k{}\":0,", i);
  wide.back() = '}';
  {
    Recorder recorder({.dump_folder = dir_}, logs_);
    Serve(recorder, Request("a", closed), wide);
    Serve(recorder, Request("b", wide), closed);
    Serve(recorder, Request("c", deep), "{}");
  }
  const std::vector<Json> lines = Lines("requests");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["request"], closed);
  EXPECT_EQ(lines[0]["response"], wide);
  EXPECT_EQ(lines[1]["request"], wide);
  EXPECT_EQ(lines[1]["response"], closed);
  EXPECT_EQ(lines[2]["request"], deep);
}

TEST_F(RecorderTest, FoldersThatDisappearDoNotEndTheServer) {
  std::ostringstream lines;
  {
    const LogCapture capture(lines);
    Recorder recorder({.dump_folder = dir_ / "gone", .crash_folder = dir_ / "gone"}, logs_);
    std::filesystem::remove_all(dir_ / "gone");
    std::filesystem::create_directory_symlink(dir_ / "gone", dir_ / "gone");  // an endless loop
    Serve(recorder, Request("a", "{}"), "{}");
    EXPECT_NO_THROW(recorder.WriteCrash("rank 1 was killed"));
  }
  EXPECT_THAT(lines.str(), HasSubstr("--dump-requests-folder"));
  EXPECT_THAT(lines.str(), HasSubstr("--crash-dump-folder"));
}

TEST(RecordLineTest, TextCannotForgeLines) {
  const Json record = {{"id", "a"}, {"request", "x\n[error]"}, {"response", "data: 1\n\n"}};
  for (const int level : {1, 2, 3})
    EXPECT_THAT(RecordLine(record, level), Not(HasSubstr("\n"))) << level;
  EXPECT_EQ(RecordLine(record, 3), R"(http: a request "x\n[error]", response "data: 1\n\n")");
}

TEST(RecordLineTest, LevelsShowMoreAndMore) {
  const Json record = {{"id", "a"},
                       {"request", {{"text", std::string(3000, 'p')}, {"temperature", 0.5}}},
                       {"response", {{"text", "answer"}}}};
  const std::string one = RecordLine(record, 1), two = RecordLine(record, 2),
                    three = RecordLine(record, 3);
  EXPECT_EQ(one, R"(http: a request {"temperature":0.5})");
  EXPECT_THAT(two, HasSubstr("answer"));
  EXPECT_LT(two.size(), 2300u);
  EXPECT_THAT(three, HasSubstr(std::string(3000, 'p')));
}

}  // namespace
}  // namespace switchyard
