#include "profile/profiler.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/duration.h"
#include "core/error.h"
#include "core/json.h"
#include "core/temporary_directory.h"

namespace switchyard::profile {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A device whose stream is `kDelay` nanoseconds behind the host.
class FakeTimer : public kernels::DeviceTimer {
 public:
  static constexpr int64_t kDelay = 60'000'000'000;

  int Mark() noexcept override {
    if (std::ssize(marks_) == most_marks) return -1;
    marks_.push_back(SteadyNanoseconds() + kDelay);
    return static_cast<int>(marks_.size()) - 1;
  }
  std::span<const int64_t> Resolve() override {
    resolved_ = std::exchange(marks_, {});
    return resolved_;
  }
  int64_t most_marks = 1000;

 private:
  std::vector<int64_t> marks_, resolved_;
};

json Read(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return json::parse(text.str());
}

// The events with a duration, in the file's order.
std::vector<json> Spans(const json& trace) {
  std::vector<json> spans;
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == "X") spans.push_back(event);
  return spans;
}

std::vector<std::string> Names(const std::vector<json>& spans) {
  std::vector<std::string> names;
  names.reserve(spans.size());
  for (const json& span : spans) names.push_back(span["name"]);
  return names;
}

double End(const json& span) { return span["ts"].get<double>() + span["dur"].get<double>(); }

class ProfilerTest : public ::testing::Test {
 protected:
  Options To(const std::string& name) const { return {.dir = dir_.string(), .name = name}; }

  // Runs a step with the spans that the engine and the decoder record.
  static void Run(Profiler& profiler, Stage stage = Stage::kDecode, int layers = 2) {
    Step step(&profiler);
    { const Span plan(&profiler, {.name = "plan"}); }
    {
      const Span forward(&profiler, {.name = "forward", .rows = 5});
      for (int layer = 0; layer < layers; ++layer)
        const Span span(&profiler, {.name = "attention",
                                    .track = Track::kPass,
                                    .micro_batch = 0,
                                    .layer = layer,
                                    .rows = 5,
                                    .columns = 64});
    }
    step.End(stage, 5);
  }

  const TemporaryDirectory temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
};

TEST_F(ProfilerTest, WritesNestedEventsInOrder) {
  Profiler profiler(3, "TP3 EP1");
  profiler.Start(To("a"));
  EXPECT_TRUE(profiler.active());
  Run(profiler, Stage::kPrefill);
  const Result result = profiler.Stop().value();
  EXPECT_FALSE(profiler.active());
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.events, 5);
  EXPECT_EQ(result.dropped, 0);
  ASSERT_THAT(result.files, ElementsAre((dir_ / "a-TP-3.trace.json").string()));

  const json trace = Read(result.files[0]);
  EXPECT_EQ(trace["otherData"]["dropped_events"], 0);
  const std::vector<json> spans = Spans(trace);
  EXPECT_THAT(Names(spans),
              ElementsAre("prefill step", "plan", "forward", "attention", "attention"));
  for (const json& span : spans) {
    EXPECT_EQ(span["pid"], 3);
    EXPECT_EQ(span["args"]["step"], 1);
    EXPECT_GE(span["dur"].get<double>(), 0.0);
    EXPECT_GE(span["ts"], spans[0]["ts"]);
    EXPECT_LE(End(span), End(spans[0]) + 1e-3);
  }
  EXPECT_EQ(spans[0]["args"], json({{"step", 1}, {"rows", 5}, {"generations", json::array()}}));
  EXPECT_EQ(spans[1]["tid"], spans[0]["tid"]);
  EXPECT_NE(spans[3]["tid"], spans[0]["tid"]);
  EXPECT_LE(End(spans[1]), spans[2]["ts"].get<double>() + 1e-3);
  EXPECT_LE(End(spans[3]), spans[4]["ts"].get<double>() + 1e-3);
  EXPECT_LE(End(spans[4]), End(spans[2]) + 1e-3);
  EXPECT_EQ(spans[4]["args"], json({{"step", 1}, {"layer", 1}, {"micro_batch", 0}, {"rows", 5}}));

  std::map<std::string, std::vector<std::string>> named;
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == "M" && event["args"].contains("name"))
      named[event["name"]].push_back(event["args"]["name"]);
  EXPECT_THAT(named["process_name"], ElementsAre("rank 3 (TP3 EP1)"));
  EXPECT_THAT(named["thread_name"], ElementsAre("steps", "pass 0"));
}

TEST_F(ProfilerTest, RecordsNothingWhileOff) {
  Profiler profiler(0, "TP0");
  Run(profiler);
  EXPECT_FALSE(profiler.recording());
  EXPECT_FALSE(profiler.Stop());
  const Span no_profiler(nullptr, {.name = "plan"});
  Step no_step(nullptr);
  no_step.End(Stage::kDecode, 1);

  profiler.Start(To("a"));
  EXPECT_FALSE(profiler.recording());  // between two steps
  { const Span outside(&profiler, {.name = "plan"}); }
  const Result result = profiler.Stop().value();
  EXPECT_EQ(result.events, 0);
  EXPECT_THAT(Spans(Read(result.files.at(0))), IsEmpty());
  Run(profiler);
  EXPECT_FALSE(profiler.Stop());
}

TEST_F(ProfilerTest, AStepWithoutAForwardPassIsNoStep) {
  Profiler profiler(0, "TP0");
  profiler.Start(To("a"));
  {
    const Step step(&profiler);
    const Span plan(&profiler, {.name = "plan"});
  }
  Run(profiler);
  const std::vector<json> spans = Spans(Read(profiler.Stop()->files.at(0)));
  EXPECT_THAT(spans, SizeIs(5));
  EXPECT_EQ(spans[0]["args"]["step"], 1);
}

TEST_F(ProfilerTest, CountsWhatDoesNotFit) {
  Profiler profiler(0, "TP0", /*max_events=*/7);
  profiler.Start(To("a"));
  for (int i = 0; i < 3; ++i) Run(profiler);
  const Result result = profiler.Stop().value();
  EXPECT_EQ(result.events, 7);
  EXPECT_EQ(result.dropped, 8);
  const json trace = Read(result.files.at(0));
  EXPECT_EQ(trace["otherData"]["dropped_events"], 8);
  EXPECT_THAT(trace["traceEvents"].dump(), HasSubstr("8 events dropped"));
  EXPECT_THAT(Spans(trace), SizeIs(7));
}

TEST_F(ProfilerTest, EndsAfterTheRequestedSteps) {
  Profiler profiler(0, "TP0");
  for (int i = 0; i < 2; ++i) Run(profiler);
  Options options = To("a");
  options.start_step = 5;
  options.num_steps = 2;
  profiler.Start(options);
  for (int i = 0; i < 10; ++i) {
    Run(profiler);
    EXPECT_EQ(profiler.active(), i < 3) << i;
  }
  const Result result = profiler.Stop().value();
  const std::vector<json> spans = Spans(Read(result.files.at(0)));
  ASSERT_THAT(spans, SizeIs(10));
  EXPECT_EQ(spans.front()["args"]["step"], 5);
  EXPECT_EQ(spans.back()["args"]["step"], 6);
  EXPECT_FALSE(profiler.Stop());

  options.start_step = 1;  // a step that has already run
  options.num_steps = 1;
  profiler.Start(options);
  Run(profiler);
  EXPECT_EQ(Spans(Read(profiler.Stop()->files.at(0)))[0]["args"]["step"], 13);
}

TEST_F(ProfilerTest, SeparatesStages) {
  Profiler profiler(0, "TP0");
  Options options = To("a");
  options.by_stage = true;
  options.num_steps = 2;
  profiler.Start(options);
  for (int i = 0; i < 5; ++i) Run(profiler, Stage::kPrefill);
  EXPECT_TRUE(profiler.active());
  for (int i = 0; i < 2; ++i) Run(profiler, Stage::kDecode);
  EXPECT_FALSE(profiler.active());
  const Result result = profiler.Stop().value();
  ASSERT_THAT(result.files, ElementsAre(EndsWith("a-TP-0-EXTEND.trace.json"),
                                        EndsWith("a-TP-0-DECODE.trace.json")));
  for (const std::string& file : result.files) EXPECT_THAT(Spans(Read(file)), SizeIs(10));
  EXPECT_EQ(Spans(Read(result.files[0]))[9]["args"]["step"], 2);
  EXPECT_EQ(Spans(Read(result.files[1]))[0]["name"], "decode step");

  options.name = "b";
  profiler.Start(options);
  Run(profiler, Stage::kDecode);
  EXPECT_THAT(profiler.Stop()->files, ElementsAre(EndsWith("b-TP-0-DECODE.trace.json")));
}

TEST_F(ProfilerTest, TimesOperationsOnTheDevice) {
  FakeTimer timer;
  Profiler profiler(0, "TP0");
  profiler.SetDevice(&timer);
  Options options = To("a");
  profiler.Start(options);
  Run(profiler);
  const std::vector<json> both = Spans(Read(profiler.Stop()->files.at(0)));
  ASSERT_THAT(both, SizeIs(7));
  EXPECT_EQ(both[5]["cat"], "gpu_operation");
  EXPECT_EQ(both[5]["args"], both[3]["args"]);
  EXPECT_NE(both[5]["tid"], both[3]["tid"]);
  EXPECT_GE(both[5]["ts"].get<double>(), both[3]["ts"].get<double>() + FakeTimer::kDelay / 1e3);

  options.host = false;
  profiler.Start(options);
  Run(profiler);
  EXPECT_THAT(Names(Spans(Read(profiler.Stop()->files.at(0)))),
              ElementsAre("attention", "attention"));

  options.host = true;
  options.device = false;
  profiler.Start(options);
  Run(profiler);
  EXPECT_THAT(Spans(Read(profiler.Stop()->files.at(0))), SizeIs(5));

  options.device = true;
  timer.most_marks = 3;  // then no mark is left for the end of the second operation
  profiler.Start(options);
  Run(profiler);
  const Result result = profiler.Stop().value();
  EXPECT_EQ(result.events, 6);
  EXPECT_EQ(result.dropped, 1);
}

// A training step with a message that an operation waits for.
void RunMessages(Profiler& profiler) {
  Step step(&profiler);
  {
    const Span experts(&profiler, {.name = "experts", .track = Track::kPass, .micro_batch = 0});
    { const Span message(&profiler, {.name = "sum", .track = Track::kMessages, .bytes = 12}); }
    const Span wait(&profiler, {.name = kWait, .track = Track::kPass, .micro_batch = 0});
  }
  step.End(Stage::kTraining, 5);
}

TEST_F(ProfilerTest, MessagesHaveTheirOwnThread) {
  FakeTimer timer, messages;
  Profiler profiler(0, "DP0");
  profiler.Start(To("cpu"));
  RunMessages(profiler);
  const std::vector<json> on_host = Spans(Read(profiler.Stop()->files.at(0)));
  EXPECT_THAT(Names(on_host), ElementsAre("training step", "experts", "sum", kWait));
  EXPECT_EQ(on_host[2]["cat"], "message");
  EXPECT_EQ(on_host[2]["args"], json({{"step", 1}, {"bytes", 12}}));

  profiler.SetDevice(&timer);
  profiler.SetMessages(&messages);
  profiler.Start(To("gpu"));
  RunMessages(profiler);
  const std::vector<json> both = Spans(Read(profiler.Stop()->files.at(0)));
  EXPECT_THAT(Names(both), ElementsAre("training step", "experts", kWait, "experts", "sum", kWait));
  EXPECT_EQ(both[4]["cat"], "message");
  EXPECT_GE(both[4]["ts"].get<double>(), both[1]["ts"].get<double>() + FakeTimer::kDelay / 1e3);
  EXPECT_NE(both[4]["tid"], both[3]["tid"]);
}

TEST_F(ProfilerTest, RecordsShapesOnRequest) {
  Profiler profiler(0, "TP0");
  Options options = To("a");
  options.record_shapes = true;
  profiler.Start(options);
  Run(profiler);
  const std::vector<json> spans = Spans(Read(profiler.Stop()->files.at(0)));
  EXPECT_EQ(spans[3]["args"]["Input Dims"], json::array({{5, 64}}));
  EXPECT_FALSE(spans[1]["args"].contains("Input Dims"));
}

TEST_F(ProfilerTest, NamesADirectoryThatCannotBeWrittenTo) {
  std::ofstream(dir_ / "file") << "x";
  Profiler profiler(0, "TP0");
  Options options = To("a");
  options.dir = (dir_ / "file" / "sub").string();
  try {
    profiler.Start(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_THAT(error.what(), HasSubstr(options.dir));
  }
  EXPECT_FALSE(profiler.active());

  // If the directory is removed while the profile is active, the profile still ends. The result has
  // the reason.
  options.dir = (dir_ / "sub").string();
  profiler.Start(options);
  Run(profiler);
  std::filesystem::remove_all(options.dir);
  const Result result = profiler.Stop().value();
  EXPECT_THAT(result.files, IsEmpty());
  EXPECT_THAT(result.error, HasSubstr("a-TP-0.trace.json: cannot be written: No such file"));
  EXPECT_FALSE(profiler.active());
}

}  // namespace
}  // namespace switchyard::profile
