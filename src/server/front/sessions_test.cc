#include "server/front/sessions.h"

#include <gmock/gmock.h>

#include "server/api/json_body.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Ids = std::vector<int32_t>;

class SessionsTest : public ::testing::Test {
 protected:
  // A request that ends with `output`.
  void Ask(const std::string& rid, Ids prompt, const Ids& output,
           std::optional<std::string> after = std::nullopt) {
    std::vector<std::string> replaced;
    sessions.Begin({.id = "s", .rid = std::move(after)}, rid, std::move(prompt), &replaced)
        ->End(output);
    EXPECT_THAT(replaced, IsEmpty());
  }
  std::string ErrorOf(const SessionParams& params) {
    try {
      sessions.Context(params);
    } catch (const RequestError& error) {
      return error.param();
    }
    return "no error";
  }

  Sessions sessions;
};

TEST_F(SessionsTest, ContextIsThePromptAndTheOutputOfTheNamedRequest) {
  EXPECT_EQ(sessions.Open("s", std::nullopt), "s");
  EXPECT_THAT(sessions.Context({.id = "s"}), IsEmpty());
  Ask("a", {1, 2, 3}, {4, 5});
  Ask("b", {1, 2, 3, 4, 5, 6}, {7}, "a");
  EXPECT_THAT(sessions.Context({.id = "s"}), IsEmpty());
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "a"}), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "b"}), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "a", .offset = 2}), ElementsAre(1, 2));
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "a", .offset = 99}), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "b", .drop_previous_output = true}),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(sessions.tokens(), 12u);
  EXPECT_TRUE(sessions.Close("s"));
  EXPECT_FALSE(sessions.Close("s"));
  EXPECT_EQ(sessions.tokens(), 0u);
}

TEST_F(SessionsTest, ReplacementRemovesWhatContinuesTheRequest) {
  sessions.Open("s", std::nullopt);
  Ask("a", {1}, {2});
  Ask("b", {1, 2, 3}, {4}, "a");
  Ask("c", {1, 2, 3, 4, 5}, {6}, "b");
  std::vector<std::string> replaced;
  const auto running = sessions.Begin({.id = "s", .rid = "a"}, "d", {1, 2, 9}, &replaced);
  sessions.Begin({.id = "s", .rid = "a", .replace = true}, "e", {1, 2, 8}, &replaced)->End({7});
  EXPECT_THAT(replaced, ElementsAre("d"));
  EXPECT_EQ(ErrorOf({.id = "s", .rid = "b"}), "session_params.rid");
  EXPECT_EQ(ErrorOf({.id = "s", .rid = "c"}), "session_params.rid");
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "e"}), ElementsAre(1, 2, 8, 7));
  replaced.clear();
  sessions.Begin({.id = "s", .replace = true}, "a", {5}, &replaced)->End({6});
  EXPECT_THAT(replaced, IsEmpty());
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "a"}), ElementsAre(5, 6));
  EXPECT_EQ(sessions.tokens(), 2u);
  running->End({1, 2, 3});  // it was removed, so its output is not kept
  EXPECT_EQ(sessions.tokens(), 2u);
}

TEST_F(SessionsTest, AReplacementRemainsWhenTheReplacedRequestEnds) {
  sessions.Open("s", std::nullopt);
  std::vector<std::string> replaced;
  auto first = sessions.Begin({.id = "s"}, "a", {1, 2}, &replaced);
  const auto second =
      sessions.Begin({.id = "s", .rid = "a", .replace = true}, "b", {1, 2, 3}, &replaced);
  EXPECT_THAT(replaced, ElementsAre("a"));
  first.reset();  // it was aborted, so it has no result
  EXPECT_EQ(ErrorOf({.id = "s", .rid = "a"}), "session_params.rid");
  EXPECT_EQ(sessions.tokens(), 3u);
  second->End({4});
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "b"}), ElementsAre(1, 2, 3, 4));
  // Request "b" keeps its own prompt, even if a later request gets the name "a" again.
  Ask("a", {7}, {8});
  sessions.Begin({.id = "s", .rid = "a", .replace = true}, "c", {7, 8, 9}, &replaced)->End({});
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "b"}), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(sessions.tokens(), 9u);
}

TEST_F(SessionsTest, UnendedRequestsAreNotContinued) {
  sessions.Open("s", std::nullopt);
  std::vector<std::string> replaced;
  {
    const auto turn = sessions.Begin({.id = "s"}, "a", {1, 2}, &replaced);
    EXPECT_EQ(ErrorOf({.id = "s", .rid = "a"}), "session_params.rid");
    EXPECT_THROW(sessions.Begin({.id = "s"}, "a", {1}, &replaced), RequestError);
  }
  // It ended without a result, so the session does not have it.
  EXPECT_EQ(sessions.tokens(), 0u);
  Ask("a", {3}, {4});
  EXPECT_THAT(sessions.Context({.id = "s", .rid = "a"}), ElementsAre(3, 4));
}

TEST_F(SessionsTest, ErrorsNameTheField) {
  EXPECT_EQ(ErrorOf({.id = "s"}), "session_params.id");
  sessions.Open("s", std::nullopt);
  EXPECT_EQ(ErrorOf({.id = "s", .rid = "a"}), "session_params.rid");
  EXPECT_THROW(sessions.Open("s", std::nullopt), RequestError);
  const std::string id = sessions.Open("", std::nullopt);
  EXPECT_EQ(id.size(), 32u);
  EXPECT_NE(sessions.Open("", std::nullopt), id);
}

TEST_F(SessionsTest, AnOverdueSessionCloses) {
  sessions.Open("s", std::chrono::duration<double>(1e-9));
  sessions.Open("t", std::chrono::hours(1));
  EXPECT_EQ(ErrorOf({.id = "s"}), "session_params.id");
  EXPECT_EQ(sessions.open(), 1u);
}

TEST_F(SessionsTest, TheNumberOfSessionsIsLimited) {
  for (size_t i = 0; i < Sessions::kMaxSessions; ++i) sessions.Open("", std::nullopt);
  EXPECT_THROW(sessions.Open("", std::nullopt), Error);
}

}  // namespace
}  // namespace switchyard
