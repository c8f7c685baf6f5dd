#include "profile/message_overlap.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "core/testing.h"
#include "profile/trace_file.h"

namespace switchyard::profile {
namespace {

using ::testing::HasSubstr;

class MessageOverlapTest : public ::testing::Test {
 protected:
  // Times in milliseconds.
  static Event Of(const char* name, Track track, int64_t begin, int64_t end, int bytes = -1) {
    return {.name = name,
            .begin = begin * 1'000'000,
            .end = end * 1'000'000,
            .bytes = bytes,
            .step = 1,
            .micro_batch = 0,
            .track = track,
            .stage = Stage::kTraining};
  }
  std::filesystem::path Write(const std::vector<Event>& events) const {
    const TraceFile file = {.path = dir_ / "a.trace.json", .profile = "a", .rank_title = "DP0"};
    WriteTrace(file, events);
    return file.path;
  }

  const TemporaryDirectory temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
};

// The GPU computes from 10 to 20, from 25 to 30 and from 40 to 50, and waits from 20 to 25.
TEST_F(MessageOverlapTest, CountsOnlyTheTimeBesideComputation) {
  const MessageOverlap got = ReadMessageOverlap(
      Write({Of("training step", Track::kSteps, 5, 55), Of("forward", Track::kPass, 5, 54),
             Of("forward", Track::kDevice, 10, 30), Of("experts", Track::kDevice, 12, 25),
             Of(kWait, Track::kDevice, 20, 25), Of("backward", Track::kDevice, 40, 50),
             Of("gather", Track::kMessages, 8, 14, 100), Of("sum", Track::kMessages, 18, 27, 300),
             Of("sum", Track::kMessages, 29, 42, 500), Of("sum", Track::kMessages, 60, 61, 7)}));
  EXPECT_EQ(got.steps, 1);
  EXPECT_DOUBLE_EQ(got.step_time, 50);
  EXPECT_DOUBLE_EQ(got.computing, 25);
  EXPECT_DOUBLE_EQ(got.waiting, 5);
  ASSERT_EQ(got.kinds.size(), 2u);
  EXPECT_EQ(got.kinds.at("gather").count, 1);
  EXPECT_EQ(got.kinds.at("gather").bytes, 100);
  EXPECT_DOUBLE_EQ(got.kinds.at("gather").time, 6);
  EXPECT_DOUBLE_EQ(got.kinds.at("gather").hidden, 4);
  EXPECT_EQ(got.kinds.at("sum").count, 3);
  EXPECT_EQ(got.kinds.at("sum").bytes, 807);
  EXPECT_DOUBLE_EQ(got.kinds.at("sum").time, 23);
  EXPECT_DOUBLE_EQ(got.kinds.at("sum").hidden, 4 + 1 + 2);  // 18–20 and 25–27; 29–30, 40–42
  EXPECT_DOUBLE_EQ(got.all.time, 29);
  EXPECT_DOUBLE_EQ(got.all.hidden, 11);
  EXPECT_THAT(Describe(got), HasSubstr("waits for messages for 5.0 ms (1 steps)"));
}

TEST_F(MessageOverlapTest, ATraceWithoutMessages) {
  const MessageOverlap got = ReadMessageOverlap(Write({Of("forward", Track::kDevice, 1, 3)}));
  EXPECT_DOUBLE_EQ(got.computing, 2);
  EXPECT_EQ(got.all.count, 0);
  EXPECT_THAT(Describe(got), HasSubstr("all"));
}

TEST_F(MessageOverlapTest, NamesAFileThatIsNoTraceOfAGpu) {
  const auto error = [](const std::filesystem::path& path, ErrorKind kind = ErrorKind::kInvalid) {
    return ErrorOf([&] { ReadMessageOverlap(path); }, kind);
  };
  EXPECT_THAT(error(dir_ / "none", ErrorKind::kNotFound), HasSubstr("none: cannot be read"));
  std::ofstream(dir_ / "list") << "[]";
  EXPECT_THAT(error(dir_ / "list"), HasSubstr("list: is not a Chrome trace"));
  std::ofstream(dir_ / "event") << R"({"traceEvents": [{"ph": "X"}]})";
  EXPECT_THAT(error(dir_ / "event"), HasSubstr("event: an event of the trace is not valid"));
  EXPECT_THAT(error(Write({Of("forward", Track::kPass, 1, 3)})),
              HasSubstr("has no operations on a GPU"));
  const std::vector<Event> events = {Of("forward", Track::kDevice, 1, 3)};
  const TraceFile dropped = {
      .path = dir_ / "some.trace.json", .profile = "a", .rank_title = "DP0", .dropped = 3};
  WriteTrace(dropped, events);
  EXPECT_THAT(error(dropped.path), HasSubstr("some.trace.json: 3 events were dropped"));
}

}  // namespace
}  // namespace switchyard::profile
