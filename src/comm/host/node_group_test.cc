// Nodes as threads of this process, connected over the loopback device.
#include "comm/host/node_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <future>

#include "comm/net/test_strangers.h"
#include "core/error.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kLong(60'000);

HostPort FreeAddress() { return TcpListener::Bind({"127.0.0.1", 0}).address(); }

using Membership = std::future<std::unique_ptr<NodeGroup>>;

struct Meeting {
  NodeGroup::Options Options(int node) const {
    return {.nodes = nodes,
            .node = node,
            .address = address,
            .ranks_per_node = 2,
            .statement = {{"--tp-size", "4"}, {"--ep-size", "2"}},
            .secret = secret,
            .timeout = kLong};
  }
  static Membership Lead(const NodeGroup::Options& options) {
    return std::async(std::launch::async, [=] { return NodeGroup::Lead(options, "a job"); });
  }
  static Membership Join(const NodeGroup::Options& options) {
    return std::async(std::launch::async, [=] { return NodeGroup::Join(options); });
  }
  int nodes = 2;
  std::string secret = {};
  HostPort address = FreeAddress();
};

std::string ErrorOf(Membership member, ErrorKind kind) {
  try {
    member.get();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(NodeGroupTest, AllGetTheJobAndTheAddressesOfAllRanks) {
  Meeting meeting{.nodes = 3};
  Membership second = Meeting::Join(meeting.Options(2));  // no leader yet
  Membership first = Meeting::Join(meeting.Options(1));
  const auto leader = Meeting::Lead(meeting.Options(0)).get();
  const auto one = first.get(), two = second.get();
  EXPECT_EQ(one->job(), "a job");
  EXPECT_EQ(two->job(), "a job");
  EXPECT_EQ(leader->network().first_rank(), 0);
  EXPECT_EQ(two->network().first_rank(), 4);
  ASSERT_EQ(leader->network().world.listeners.size(), 6u);
  for (NodeGroup* group : {leader.get(), one.get(), two.get()}) {
    const NodeNetwork& network = group->network();
    EXPECT_EQ(network.world.Encode(), leader->network().world.Encode());
    ASSERT_EQ(network.listeners.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(network.listeners[i].address().Text(),
                network.world.listeners[network.first_rank() + i].Text());
    }
  }
  EXPECT_EQ(leader->Describe(2), "node 2 (127.0.0.1)");
}

TEST(NodeGroupTest, DifferentFlagsAreRefusedByNameOnBothSides) {
  Meeting meeting;
  auto options = meeting.Options(1);
  options.statement[1].second = "4";
  Membership other = Meeting::Join(options);
  const std::string why =
      "--ep-size is 2 on node 0, but 4 on node 1 (127.0.0.1): both need the same value";
  EXPECT_EQ(ErrorOf(Meeting::Lead(meeting.Options(0)), ErrorKind::kInvalid), why);
  EXPECT_EQ(ErrorOf(std::move(other), ErrorKind::kInvalid), why);
}

TEST(NodeGroupTest, DifferentNumbersOfNodesAreRefused) {
  Meeting meeting;
  auto options = meeting.Options(1);
  options.nodes = 3;
  Membership other = Meeting::Join(options);
  EXPECT_THAT(ErrorOf(Meeting::Lead(meeting.Options(0)), ErrorKind::kInvalid),
              HasSubstr("--nnodes is 2 on node 0, but 3 on node 1"));
  EXPECT_THAT(ErrorOf(std::move(other), ErrorKind::kInvalid), HasSubstr("--nnodes is 2"));
}

TEST(NodeGroupTest, TwoNodesOfOneRankAreRefused) {
  Meeting meeting{.nodes = 3};
  Membership one = Meeting::Join(meeting.Options(1));
  Membership same = Meeting::Join(meeting.Options(1));
  EXPECT_THAT(ErrorOf(Meeting::Lead(meeting.Options(0)), ErrorKind::kInvalid),
              HasSubstr("another node has joined with the same --node-rank"));
  ErrorOf(std::move(one), ErrorKind::kInvalid);
  ErrorOf(std::move(same), ErrorKind::kInvalid);
}

TEST(NodeGroupTest, MissingNodesAreNamed) {
  Meeting meeting{.nodes = 4};
  Membership one = Meeting::Join(meeting.Options(2));
  auto options = meeting.Options(0);
  options.timeout = milliseconds(1500);
  const auto names_them = AllOf(HasSubstr("node 0 waited 1.5 s at 127.0.0.1:"),
                                HasSubstr("for node 1, 3 of 4"), HasSubstr("--node-rank"));
  EXPECT_THAT(ErrorOf(Meeting::Lead(options), ErrorKind::kTimeout), names_them);
  EXPECT_THAT(ErrorOf(std::move(one), ErrorKind::kInvalid), names_them);
}

TEST(NodeGroupTest, TheErrorOfANodeWithoutNode0HasTheAddress) {
  Meeting meeting;
  auto options = meeting.Options(1);
  options.timeout = milliseconds(100);
  EXPECT_THAT(ErrorOf(Meeting::Join(options), ErrorKind::kTimeout),
              AllOf(HasSubstr("node 1 waited 0.1 s for node 0 at 127.0.0.1:"),
                    HasSubstr("--dist-init-addr")));
}

TEST(NodeGroupTest, GivingUpIsNoError) {
  Meeting meeting;
  auto options = meeting.Options(0);
  options.give_up = [] { return true; };
  EXPECT_EQ(Meeting::Lead(options).get(), nullptr);
  EXPECT_EQ(Meeting::Join(options).get(), nullptr);
}

TEST(NodeGroupTest, AnAddressOfNoHostIsRefused) {
  Meeting meeting;
  meeting.address.host = "0.0.0.0";
  EXPECT_THAT(ErrorOf(Meeting::Lead(meeting.Options(0)), ErrorKind::kInvalid),
              HasSubstr("want an address of node 0"));
}

TEST(NodeGroupTest, StrangersAreIgnored) {
  for (const char* secret : {"", "a secret of the engine"}) {
    Meeting meeting{.secret = secret};
    Membership leading = Meeting::Lead(meeting.Options(0));
    const auto strangers = OpenStrangers(meeting.address);
    const auto one = NodeGroup::Join(meeting.Options(1));
    EXPECT_NE(leading.get(), nullptr);
  }
}

TEST(NodeGroupTest, NodesWithOneSecretShareAKeyOfTheirRanks) {
  Meeting meeting{.nodes = 3, .secret = "a secret of the engine"};
  Membership two = Meeting::Join(meeting.Options(2)), one = Meeting::Join(meeting.Options(1));
  const auto leader = Meeting::Lead(meeting.Options(0)).get();
  for (Membership* member : {&one, &two}) {
    const auto group = member->get();
    EXPECT_EQ(group->network().world.Encode(), leader->network().world.Encode());
  }
}

TEST(NodeGroupTest, NodesWithAnotherOrNoSecretAreRefusedWithoutEndingTheWait) {
  Meeting meeting{.secret = "a secret of the engine"};
  Membership leading = Meeting::Lead(meeting.Options(0));
  auto other = meeting.Options(1);
  other.secret = "a secret of another";
  EXPECT_THAT(ErrorOf(Meeting::Join(other), ErrorKind::kInvalid),
              AllOf(HasSubstr("node 1 and node 0 at 127.0.0.1:"),
                    HasSubstr("have different secrets"), HasSubstr("--dist-secret-file")));
  other.secret.clear();
  EXPECT_THAT(
      ErrorOf(Meeting::Join(other), ErrorKind::kInvalid),
      AllOf(HasSubstr("node 0 at 127.0.0.1:"), HasSubstr("has a secret and node 1 has none"),
            HasSubstr("--dist-secret-file")));
  EXPECT_NE(NodeGroup::Join(meeting.Options(1)), nullptr);
  EXPECT_NE(leading.get(), nullptr);
}

TEST(NodeGroupTest, ANodeWithASecretRefusesNode0WithoutOne) {
  Meeting meeting;
  auto options = meeting.Options(0);
  options.timeout = milliseconds(1500);
  Membership leading = Meeting::Lead(options);
  auto other = meeting.Options(1);
  other.secret = "a secret of another";
  EXPECT_THAT(ErrorOf(Meeting::Join(other), ErrorKind::kInvalid),
              HasSubstr("node 1 has a secret and node 0 at 127.0.0.1:"));
  EXPECT_THAT(ErrorOf(std::move(leading), ErrorKind::kTimeout),
              AllOf(HasSubstr("for node 1 of 2; refused: node 1 (127.0.0.1) has a secret and node "
                              "0 has none"),
                    HasSubstr("--dist-secret-file")));
}

TEST(NodeGroupTest, ANodeThatLeavesDuringTheWaitMayReconnect) {
  Meeting meeting{.nodes = 3};
  Membership leading = Meeting::Lead(meeting.Options(0));
  std::atomic<bool> leave = false;
  auto options = meeting.Options(1);
  options.give_up = [&] { return leave.load(); };
  Membership first = Meeting::Join(options);
  leave = true;
  EXPECT_EQ(first.get(), nullptr);
  Membership again = Meeting::Join(meeting.Options(1)), two = Meeting::Join(meeting.Options(2));
  EXPECT_NE(leading.get(), nullptr);
  EXPECT_NE(again.get(), nullptr);
  EXPECT_NE(two.get(), nullptr);
}

// Two nodes, and the events that each receives.
class NewsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Meeting meeting;
    Membership other = Meeting::Join(meeting.Options(1));
    groups_[0] = Meeting::Lead(meeting.Options(0)).get();
    groups_[1] = other.get();
    for (int node = 0; node < 2; ++node) {
      groups_[node]->Watch(
          {.on_lost = [this, node](const std::string& why,
                                   bool cause) { Add(node, (cause ? "cause: " : "") + why); },
           .on_end = [this, node] { Add(node, "the end"); }});
    }
  }
  void TearDown() override {
    for (auto& group : groups_) group.reset();
  }
  void Add(int node, const std::string& what) {
    const std::lock_guard lock(mutex_);
    news_[node].push_back(what);
    changed_.notify_all();
  }
  std::vector<std::string> News(int node) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLong, [&] { return !news_[node].empty(); }));
    return news_[node];
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> news_[2];
  std::unique_ptr<NodeGroup> groups_[2];
};

TEST_F(NewsTest, TheEndIsReportedOnce) {
  groups_[0]->SendEnd();
  EXPECT_THAT(News(1), ::testing::ElementsAre("the end"));
  groups_[1].reset();
  groups_[0].reset();
  EXPECT_TRUE(news_[0].empty());
}

TEST_F(NewsTest, ALossIsReportedInBothDirections) {
  groups_[1]->SendLost("rank 3 was killed", true);
  EXPECT_THAT(News(0), ::testing::ElementsAre("cause: node 1 (127.0.0.1): rank 3 was killed"));
  groups_[0]->SendLost("rank 0 ended", false);
  EXPECT_THAT(News(1), ::testing::ElementsAre("node 0 (127.0.0.1): rank 0 ended"));
}

TEST_F(NewsTest, Node0LearnsHowTheRanksOfOthersEnded) {
  groups_[1]->SendLost("rank 3 was killed", true);
  groups_[1]->SendRanksEnd({.exits = {{.rank = 3, .signal = 11}, {.rank = 2, .code = 1}},
                            .batch = std::vector<uint64_t>{7, 9}});
  const auto ends = groups_[0]->AwaitRanksEnds(kLong);
  ASSERT_EQ(ends.size(), 1u);
  ASSERT_TRUE(ends[0]);
  ASSERT_EQ(ends[0]->exits.size(), 2u);
  EXPECT_EQ(ends[0]->exits[0].rank, 3);
  EXPECT_EQ(ends[0]->exits[0].signal, 11);
  EXPECT_EQ(ends[0]->exits[1].code, 1);
  EXPECT_EQ(ends[0]->batch, (std::vector<uint64_t>{7, 9}));
  groups_[1].reset();  // expected now
  EXPECT_THAT(News(0), ::testing::ElementsAre("cause: node 1 (127.0.0.1): rank 3 was killed"));
}

TEST_F(NewsTest, ANodeThatIsGoneTellsNothing) {
  EXPECT_FALSE(groups_[0]->AwaitRanksEnds(milliseconds(20))[0]);
  groups_[1].reset();
  EXPECT_FALSE(groups_[0]->AwaitRanksEnds(kLong)[0]);
}

TEST(NodeGroupTest, RanksEndsRoundTripAndRefuseOtherBytes) {
  const NodeRanksEnd end{.exits = {{.rank = 1, .code = 2, .signal = 3}}};
  const std::string bytes = end.Encode();
  const NodeRanksEnd back = NodeRanksEnd::Decode(bytes);
  EXPECT_EQ(back.exits[0].signal, 3);
  EXPECT_FALSE(back.batch);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_THROW(NodeRanksEnd::Decode(std::string_view(bytes).substr(0, n)), Error);
}

// Nodes that try to rejoin learn that the engine has ended, in any order and number.
TEST(NodeGroupTest, NodesOfAnEndedEngineAreDismissed) {
  Meeting meeting{.nodes = 3, .secret = "a secret of the engine"};
  Membership two = Meeting::Join(meeting.Options(2)), one = Meeting::Join(meeting.Options(1));
  NodeGroup::Dismiss(meeting.Options(0), "too many deaths", kLong);
  for (Membership* member : {&one, &two})
    EXPECT_EQ(ErrorOf(std::move(*member), ErrorKind::kUnavailable),
              "node 0 has ended the engine: too many deaths");
  NodeGroup::Dismiss(meeting.Options(0), "no node rejoins", milliseconds(20));
}

TEST_F(NewsTest, ALostNodeIsNamed) {
  groups_[1].reset();
  EXPECT_THAT(News(0),
              ::testing::ElementsAre("cause: node 1 (127.0.0.1) is gone: its connection closed"));
}

// Requests are open, so a node that was started with other flags must not end the engine.
TEST(NodeGroupTest, ARestartedEngineRefusesANodeThatDiffers) {
  const Meeting meeting;
  auto leading = meeting.Options(0), differs = meeting.Options(1);
  leading.restart = true;
  differs.statement[1].second = "4";
  Membership leader = Meeting::Lead(leading);
  EXPECT_THAT(ErrorOf(Meeting::Join(differs), ErrorKind::kInvalid), HasSubstr("--ep-size"));
  const auto one = Meeting::Join(meeting.Options(1)).get();
  EXPECT_NE(leader.get(), nullptr);
  EXPECT_EQ(one->job(), "a job");
}

}  // namespace
}  // namespace switchyard
