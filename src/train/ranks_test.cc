// Expert parallelism: the gradients of a step do not depend on the number of ranks, on the form of
// the exchange, or on the computation that overlaps it.
#include <gmock/gmock.h>

#include <mutex>

#include "comm/device/communicator.h"
#include "comm/device/rank_threads.h"
#include "core/testing.h"
#include "train/exchange/delayed_exchange.h"
#include "train/run/learner.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

using GradientMap = std::map<std::string, std::vector<float>>;

struct Step {
  GradientMap gradients;
  Losses losses;
  std::vector<std::vector<float>> loads;
};

LossOptions Options() {
  return {.balance = {.batch = 0.5, .sequence = 0.4, .z = 0.1}, .mtp_layers = 1};
}

// Sequences [first, last) of a batch.
Batch Part(const Batch& batch, int64_t first, int64_t last) {
  Batch part;
  const int32_t begin = batch.begins[first], end = batch.begins[last];
  part.tokens.assign(batch.tokens.begin() + begin, batch.tokens.begin() + end);
  part.targets.assign(batch.targets.begin() + begin, batch.targets.begin() + end);
  for (int64_t s = first; s <= last; ++s) part.begins.push_back(batch.begins[s] - begin);
  return part;
}

Step OneRankStep(const ModelConfig& config, const Batch& batch) {
  testing::OneRank<float> rank(config, Options());
  Pass<float> pass;
  Step step;
  step.losses = rank.model.Run(batch, testing::SizeOf(batch), true, &pass);
  step.gradients = testing::Gradients(rank.model);
  step.loads = rank.model.loads();
  return step;
}

struct Form {
  int ranks = 1;
  int copies = 1;  // of each expert; the EP size is ranks / copies
  bool synchronous = false;
  bool two = false;  // micro-batches
  schedule::Order order = schedule::Order::kPlain;
  bool tcp = false;
  std::vector<int64_t> borders;  // sequence boundaries of the ranks
};

Step RanksStep(const ModelConfig& config, const Batch& batch, const Form& form) {
  const StepSize size = testing::SizeOf(batch);
  // Ranks that would share an expert during inference (MoE-TP) hold copies of it.
  const int ep = form.ranks / form.copies;
  const MeshShape shape{.tp = form.ranks, .ep = ep};
  const RowExchangeOptions options{
      .message_bytes = MoeMessageBytes(config, ep, batch.size(), sizeof(float)),
      .places = 4,
      .synchronous = form.synchronous};
  const size_t bytes = RankComm::BytesPerRank(shape) + RowExchangeBytes(ep, options) + 4096;
  Step step;
  std::mutex mutex;
  const RankBody body = [&](int r, const std::shared_ptr<SharedArena>& arena) {
    const auto comm = RankComm::Create(arena, shape, r, {.timeout = std::chrono::seconds(60)});
    const auto exchange = MakeRowExchange(*comm->memory, comm->mesh.EpGroup(), options);
    const SumOverRanks sum = [&](std::span<float> v) {
      comm->tp->AllReduceSum(v.data(), v.size());
    };
    testing::OneRank<float> whole(config, Options());  // for its weights
    ThreadPool pool(1);
    Model<float> model(config, Options(), {.exchange = exchange.get(), .sum = sum}, pool);
    std::map<std::string, const Parameter<float>*> all;
    for (const Parameter<float>* p : whole.model.parameters()) all[p->name] = p;
    for (Parameter<float>* p : model.parameters()) p->value = all.at(p->name)->value;

    const int64_t first = form.borders[r], last = form.borders[r + 1];
    Learner learner(model, {.order = form.order}, comm->tp.get(), comm->moe_tp.get());
    std::vector<Batch> batches = {Part(batch, first, last)};
    if (form.two) {
      const int64_t middle = (first + last) / 2;
      batches = {Part(batch, first, middle), Part(batch, middle, last)};
    }
    const Losses losses = learner.Learn(batches, size);
    const std::vector<Parameter<float>*> parameters = model.parameters();
    const std::lock_guard lock(mutex);
    step.losses += losses;
    step.loads.resize(model.loads().size());
    for (size_t l = 0; l < step.loads.size(); ++l) {
      step.loads[l].resize(model.loads()[l].size());
      for (size_t e = 0; e < step.loads[l].size(); ++e) step.loads[l][e] += model.loads()[l][e];
    }
    for (const Parameter<float>* p : parameters) {
      const auto [at, inserted] = step.gradients.emplace(p->name, p->gradient);
      if (inserted) continue;
      EXPECT_TRUE(!p->expert || form.copies > 1) << p->name << " is on two ranks";
      EXPECT_EQ(at->second, p->gradient) << p->name << " differs between ranks";
    }
  };
  if (form.tcp) {
    RunTcpRankThreads(form.ranks, 1, bytes, body);
  } else {
    RunRankThreads(form.ranks, bytes, body);
  }
  return step;
}

class Ranks : public ::testing::TestWithParam<std::string> {
 public:
  const ModelConfig config = ParseModelConfig(testing::SmallConfig(GetParam()));
  const Batch batch = testing::RandomBatch({9, 4, 1, 7, 12, 3, 5, 8}, config.vocab_size, 6);
};

TEST_P(Ranks, GiveTheGradientsOfOneRank) {
  const Step wanted = OneRankStep(config, batch);
  for (const Form& form :
       {Form{.ranks = 2, .borders = {0, 3, 8}}, Form{.ranks = 2, .tcp = true, .borders = {0, 3, 8}},
        Form{.ranks = 2, .synchronous = true, .borders = {0, 8, 8}},
        Form{.ranks = 4, .borders = {0, 2, 2, 5, 8}},
        Form{.ranks = 4, .synchronous = true, .borders = {0, 2, 4, 6, 8}},
        Form{.ranks = 4, .copies = 2, .borders = {0, 2, 4, 6, 8}},
        Form{.ranks = 2, .copies = 2, .borders = {0, 3, 8}}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} copies, synchronous {}", form.ranks, form.copies,
                             form.synchronous));
    const Step step = RanksStep(config, batch, form);
    EXPECT_NEAR(step.losses.total(), wanted.losses.total(), 1e-6 * wanted.losses.total());
    EXPECT_EQ(step.loads, wanted.loads);
    ASSERT_EQ(step.gradients.size(), wanted.gradients.size());
    for (const auto& [name, gradient] : wanted.gradients) {
      EXPECT_LT(testing::RelativeError(step.gradients.at(name), gradient), 2e-6) << name;
      // An expert receives the same rows in the same order.
      if (form.copies == 1 && name.find(".experts.") != std::string::npos) {
        EXPECT_EQ(step.gradients.at(name), gradient) << name;
      }
    }
  }
}

TEST_P(Ranks, FormsOfTheExchangeAndOverlapChangeNoBit) {
  Form form{.ranks = 4, .borders = {0, 2, 4, 6, 8}};
  const Step asynchronous = RanksStep(config, batch, form);
  form.synchronous = true;
  EXPECT_EQ(RanksStep(config, batch, form).gradients, asynchronous.gradients);
  form = {.ranks = 2, .two = true, .borders = {0, 4, 8}};
  const Step in_turn = RanksStep(config, batch, form);
  form.order = schedule::Order::kOverlapped;
  EXPECT_EQ(RanksStep(config, batch, form).gradients, in_turn.gradients);
  form.synchronous = true;
  EXPECT_EQ(RanksStep(config, batch, form).gradients, in_turn.gradients);
}

// Plain gradient descent with moving biases; each rank has its sequences in two micro-batches.
// Returns the loss of each step over all ranks.
std::vector<double> Curve(const ModelConfig& config, const Batch& batch, int ranks,
                          schedule::Order order, int steps) {
  const StepSize size = testing::SizeOf(batch);
  const MeshShape shape{.tp = ranks, .ep = ranks};
  const RowExchangeOptions options{.message_bytes =
                                       MoeMessageBytes(config, ranks, batch.size(), sizeof(float))};
  std::vector<std::vector<double>> curves(ranks, std::vector<double>(steps));
  std::map<std::string, double> figures;  // of the last step, on every rank
  std::mutex mutex;
  RunRankThreads(
      ranks, RankComm::BytesPerRank(shape) + RowExchangeBytes(ranks, options) + 4096,
      [&](int r, const std::shared_ptr<SharedArena>& arena) {
        const auto comm = RankComm::Create(arena, shape, r);
        const auto exchange = MakeRowExchange(*comm->memory, comm->mesh.EpGroup(), options);
        const SumOverRanks sum = [&](std::span<float> v) {
          comm->tp->AllReduceSum(v.data(), v.size());
        };
        ThreadPool pool(1);
        LossOptions losses = Options();
        losses.balance.batch = 0.0;  // its f[e] depend on the partition into micro-batches
        Model<float> model(config, losses, {.exchange = exchange.get(), .sum = sum}, pool);
        model.Initialise(9, 0.1);
        Learner learner(model, {.bias_step = 0.001, .order = order}, comm->tp.get());
        const Share mine = EvenShare(batch.sequences(), ranks, r);
        const int64_t middle = (mine.begin + mine.end) / 2;
        const Batch parts[] = {Part(batch, mine.begin, middle), Part(batch, middle, mine.end)};
        for (int step = 0; step < steps; ++step) {
          const Losses found = learner.Learn(parts, size);
          for (Parameter<float>* p : learner.Parameters()) {
            for (size_t i = 0; i < p->gradient.size(); ++i) p->value[i] -= 0.1f * p->gradient[i];
          }
          model.ClearGradients();
          const std::map<std::string, double> after = learner.AfterStep(1.0);
          curves[r][step] = found.total();
          if (step + 1 < steps) continue;
          const std::lock_guard lock(mutex);
          if (figures.empty()) figures = after;
          EXPECT_EQ(after, figures) << "figures differ between ranks";
        }
      });
  EXPECT_GT(figures.at("balancedness"), 0.2);
  EXPECT_LE(figures.at("balancedness_worst"), figures.at("balancedness"));
  EXPECT_GE(figures.at("dead_experts"), 0.0);
  std::vector<double> curve(steps);
  for (const std::vector<double>& part : curves)
    for (int step = 0; step < steps; ++step) curve[step] += part[step];
  return curve;
}

TEST(Training, LowersTheLossAlikeOnAnyNumberOfRanks) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  const Batch batch = testing::RandomBatch({9, 4, 1, 7, 12, 3, 5, 8}, config.vocab_size, 6);
  constexpr int kSteps = 60;
  const std::vector<double> one = Curve(config, batch, 1, schedule::Order::kPlain, kSteps);
  EXPECT_LT(one.back(), 0.8 * one.front());
  for (const int ranks : {2, 4}) {
    const std::vector<double> many = Curve(config, batch, ranks, schedule::Order::kPlain, kSteps);
    EXPECT_EQ(Curve(config, batch, ranks, schedule::Order::kOverlapped, kSteps), many)
        << "overlap changes bits";
    for (int step = 0; step < kSteps; ++step)
      EXPECT_NEAR(many[step], one[step], 1e-4 * one[step]) << ranks << " ranks, step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Ranks,
                         ::testing::Values("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

TEST(RowExchange, RefusesWhatItWasNotPlannedFor) {
  const RowExchangeOptions options{.message_bytes = 64, .places = 1};
  const std::string error = ErrorOf(
      [&] {
        RunRankThreads(2, RowExchangeBytes(2, options), [&](int r, auto arena) {
          SymmetricMemory memory(arena, r, {});
          const auto exchange = MakeRowExchange(memory, {0, 1}, options);
          ExchangeHandle handle;
          const size_t bytes[] = {65, 65};
          exchange->Open(bytes, &handle);
        });
      },
      ErrorKind::kResource);
  EXPECT_THAT(error,
              ::testing::HasSubstr("message of 65 bytes exceeds the exchange's limit of 64"));
  EXPECT_THAT(ErrorOf(
                  [&] {
                    RunRankThreads(2, RowExchangeBytes(2, options), [&](int r, auto arena) {
                      SymmetricMemory memory(arena, r, {});
                      const auto exchange = MakeRowExchange(memory, {0, 1}, options);
                      ExchangeHandle first, second;
                      const size_t bytes[] = {8, 8};
                      exchange->Open(bytes, &first);
                      exchange->Open(bytes, &second);
                    });
                  },
                  ErrorKind::kResource),
              ::testing::HasSubstr("more than 1 exchanges are in flight"));
}

TEST(RowExchange, OfASlowNetworkArrivesAfterItsDelay) {
  const ExchangeDelay slow{.delay = std::chrono::milliseconds(20)};
  const auto exchange = MakeDelayedExchange(MakeLocalExchange(), slow);
  ExchangeHandle handle;
  const size_t bytes[] = {8};
  exchange->Open(bytes, &handle);
  const auto begin = std::chrono::steady_clock::now();
  exchange->Post(&handle);
  exchange->Wait(&handle);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, slow.delay);
  EXPECT_TRUE(exchange->Arrived(&handle));
  EXPECT_EQ(handle.from[0].size(), 8u);
  exchange->Release(&handle);
}

// Buffers are reused, message lengths vary, and several exchanges are in flight.
TEST(RowExchange, CarriesManyMessages) {
  for (const bool synchronous : {false, true}) {
    const RowExchangeOptions options{
        .message_bytes = 4000, .places = 2, .synchronous = synchronous};
    RunRankThreads(3, RowExchangeBytes(3, options), [&](int rank, auto arena) {
      SymmetricMemory memory(arena, rank, {});
      const auto exchange = MakeRowExchange(memory, {0, 1, 2}, options);
      const auto length = [](int n, int from, int to) {
        return static_cast<size_t>((n * 37 + from * 11 + to * 5) % 1000) * sizeof(int);
      };
      ExchangeHandle handles[2];
      const auto send = [&](int n) {
        ExchangeHandle& h = handles[n % 2];
        size_t bytes[3];
        for (int r = 0; r < 3; ++r) bytes[r] = length(n, rank, r);
        exchange->Open(bytes, &h);
        for (int r = 0; r < 3; ++r)
          std::fill_n(reinterpret_cast<int*>(h.to[r]), bytes[r] / sizeof(int),
                      n * 9 + rank * 3 + r);
        exchange->Post(&h);
      };
      const auto receive = [&](int n) {
        ExchangeHandle& h = handles[n % 2];
        exchange->Wait(&h);
        EXPECT_TRUE(exchange->Arrived(&h));
        for (int r = 0; r < 3; ++r) {
          ASSERT_EQ(h.from[r].size(), length(n, r, rank));
          for (size_t i = 0; i < h.from[r].size() / sizeof(int); ++i)
            ASSERT_EQ(reinterpret_cast<const int*>(h.from[r].data())[i], n * 9 + r * 3 + rank);
        }
        exchange->Release(&h);
      };
      send(0);
      for (int n = 1; n < 60; ++n) {
        send(n);
        receive(n - 1);
      }
      receive(59);
    });
  }
}

}  // namespace
}  // namespace switchyard::train
