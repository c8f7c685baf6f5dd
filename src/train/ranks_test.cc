// Expert parallelism: the gradients of a step do not depend on the number of ranks, on the form of
// the exchange, or on the computation that overlaps it.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "comm/device/communicator.h"
#include "comm/device/rank_threads.h"
#include "core/testing.h"
#include "train/exchange/delayed_dispatcher.h"
#include "train/exchange/expert_exchange.h"
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
  int copies = 1;  // copies of each expert; the EP size is ranks / copies
  bool synchronous = false;
  bool two = false;  // whether the batch is split into two micro-batches
  schedule::Order order = schedule::Order::kPlain;
  bool tcp = false;
  // [ranks + 1] sequences [borders[r], borders[r + 1]) belong to rank r.
  std::vector<int64_t> borders;
};

Step RanksStep(const ModelConfig& config, const Batch& batch, const Form& form) {
  const StepSize size = testing::SizeOf(batch);
  // With MoE-TP, inference shards an expert over several ranks. In training, each of these ranks
  // holds a copy of the expert.
  const int ep = form.ranks / form.copies;
  const MeshShape shape{.tp = form.ranks, .ep = ep};
  const ExpertExchangeOptions options{.tokens = batch.size(), .synchronous = form.synchronous};
  const size_t bytes =
      RankComm::BytesPerRank(shape) + ExpertExchange::BytesPerRank(ep, config, options) + 4096;
  Step step;
  std::mutex mutex;
  const RankBody body = [&](int r, const std::shared_ptr<SharedArena>& arena) {
    const auto comm = RankComm::Create(arena, shape, r, {.timeout = std::chrono::seconds(60)});
    ThreadPool pool(1);
    const ExpertExchange exchange(*comm->memory, comm->mesh.EpGroup(), config, options, pool);
    const SumOverRanks sum = [&](std::span<float> v) {
      comm->tp->AllReduceSum(v.data(), v.size());
    };
    testing::OneRank<float> whole(config, Options());  // gives the initial weights
    Model<float> model(config, Options(), {.experts = exchange.ranks(), .sum = sum}, pool);
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
  const ExpertExchangeOptions options{.tokens = batch.size()};
  std::vector<std::vector<double>> curves(ranks, std::vector<double>(steps));
  std::map<std::string, double> figures;  // metrics of the last step, on every rank
  std::mutex mutex;
  RunRankThreads(
      ranks,
      RankComm::BytesPerRank(shape) + ExpertExchange::BytesPerRank(ranks, config, options) + 4096,
      [&](int r, const std::shared_ptr<SharedArena>& arena) {
        const auto comm = RankComm::Create(arena, shape, r);
        ThreadPool pool(1);
        const ExpertExchange exchange(*comm->memory, comm->mesh.EpGroup(), config, options, pool);
        const SumOverRanks sum = [&](std::span<float> v) {
          comm->tp->AllReduceSum(v.data(), v.size());
        };
        LossOptions losses = Options();
        // This loss depends on the partition into micro-batches, because its f[e] do.
        losses.balance.batch = 0.0;
        Model<float> model(config, losses, {.experts = exchange.ranks(), .sum = sum}, pool);
        model.Initialise(9, 0.1);
        Learner learner(model, {.bias_step = 0.001, .order = order}, comm->tp.get());
        const Range mine = EvenPart(batch.sequences(), ranks, r);
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

// Routing of `tokens` tokens of `rank` in exchange n. The experts of token t depend on t, `rank`
// and n.
TopK Routing(int n, int rank, int64_t tokens) {
  constexpr int kExperts = 8, kTopK = 3;  // as in SmallConfig("deepseek_v3")
  TopK topk{.tokens = tokens, .k = kTopK};
  for (int64_t t = 0; t < tokens; ++t)
    for (int j = 0; j < kTopK; ++j)
      topk.ids.push_back(static_cast<int32_t>((n + 3 * rank + 5 * t + 2 * j) % kExperts));
  topk.weights.assign(topk.ids.size(), 1.0f);
  return topk;
}

void OnThreeRanks(const ExpertExchangeOptions& options,
                  const std::function<void(ExpertExchange&)>& body) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  RunRankThreads(3, ExpertExchange::BytesPerRank(3, config, options), [&](int r, auto arena) {
    SymmetricMemory memory(arena, r, {});
    ThreadPool pool(1);
    ExpertExchange exchange(memory, {0, 1, 2}, config, options, pool);
    body(exchange);
  });
}

TEST(RowExchange, RefusesWhatItWasNotPlannedFor) {
  const ExpertExchangeOptions options{.tokens = 4, .in_flight = 1};
  EXPECT_THAT(ErrorOf(
                  [&] {
                    OnThreeRanks(options, [](ExpertExchange& exchange) {
                      DispatchHandle handle;
                      exchange.ranks().dispatcher->InputRows(5, false, &handle);
                    });
                  },
                  ErrorKind::kResource),
              ::testing::HasSubstr("5 tokens on one rank exceed the capacity of 4"));
  EXPECT_THAT(ErrorOf(
                  [&] {
                    OnThreeRanks(options, [](ExpertExchange& exchange) {
                      DispatchHandle first, second;
                      exchange.ranks().dispatcher->InputRows(1, false, &first);
                      exchange.ranks().dispatcher->InputRows(1, false, &second);
                    });
                  },
                  ErrorKind::kResource),
              ::testing::HasSubstr("1 batches are in flight"));
}

// A batch whose rows are numbers, and whose experts return the row's number, the expert and the
// slot.
struct NumberedBatch {
  static constexpr int64_t kTokens = 40;

  NumberedBatch(int number, const ExpertRanks& expert_ranks)
      : n(number),
        ranks(expert_ranks),
        topk(Routing(n, ranks.rank, (n * 37 + ranks.rank * 11) % kTokens)) {}

  static float RowOf(int n, int rank, int64_t t) {
    return static_cast<float>(n * 1000 + rank * 100 + t);
  }

  void Write(int gradient) {
    std::byte* rows = ranks.dispatcher->InputRows(topk.tokens, false, &handle);
    for (int64_t t = 0; t < topk.tokens; ++t) {
      const float x = RowOf(n, ranks.rank, t) + 0.5f * static_cast<float>(gradient);
      std::memcpy(rows + t * kRowBytes, &x, sizeof x);
    }
  }
  void Send(bool gradient) {
    Write(gradient);
    if (gradient) {
      ranks.dispatcher->BeginDispatchAgain(nullptr, false, &handle);
    } else {
      ranks.dispatcher->BeginDispatch(nullptr, topk, false, &handle);
    }
  }
  // Receives rows, checks their order, and returns their numbers as outputs.
  void Answer(bool gradient) {
    const Dispatched in = ranks.dispatcher->EndDispatch(&handle);
    EXPECT_TRUE(ranks.dispatcher->Arrived(&handle));
    std::vector<int32_t> position(in.num_rows * in.k, -1);
    std::vector<float> outputs;
    float last = -1.0f;
    for (int64_t row = 0; row < in.num_rows; ++row) {
      float x = 0;
      std::memcpy(&x, in.row_places[row], sizeof x);
      EXPECT_GT(x, last) << "rows are in the order of ranks and tokens";
      EXPECT_EQ(x - std::floor(x), gradient ? 0.5f : 0.0f);
      last = x;
      for (int j = 0; j < in.k; ++j) {
        if (in.topk_ids[row * in.topk_stride + j] < 0) continue;
        position[row * in.k + j] = static_cast<int32_t>(outputs.size());
        outputs.push_back(x * 8 + static_cast<float>(j));
      }
    }
    const ExpertRows experts = {.num_rows = std::ssize(outputs), .position = position.data()};
    const auto places = ranks.dispatcher->OutputDestinations(experts, &handle);
    for (size_t i = 0; i < outputs.size(); ++i) std::memcpy(places[i], &outputs[i], sizeof(float));
    ranks.dispatcher->BeginCombine(experts, &handle);
  }
  void Check(bool gradient) {
    const std::byte* rows = ranks.dispatcher->EndCombineBySlot(&handle);
    for (int64_t i = 0; i < topk.tokens * topk.k; ++i) {
      float y = 0;
      std::memcpy(&y, rows + i * kRowBytes, sizeof y);
      const float x = RowOf(n, ranks.rank, i / topk.k) + (gradient ? 0.5f : 0.0f);
      EXPECT_EQ(y, x * 8 + static_cast<float>(i % topk.k));
    }
    ranks.dispatcher->ReleaseOutputs(&handle);
  }

  static constexpr int64_t kRowBytes = (12 + 3) * sizeof(float);  // H = 12 and k = 3 of the config
  const int n;
  const ExpertRanks ranks;
  const TopK topk;
  DispatchHandle handle;
};

// Buffers are reused, numbers of rows vary, and several batches are in flight, some of them with
// the routing of an earlier dispatch.
TEST(RowExchange, CarriesManyMessages) {
  for (const bool synchronous : {false, true}) {
    OnThreeRanks({.tokens = NumberedBatch::kTokens, .in_flight = 2, .synchronous = synchronous},
                 [](ExpertExchange& exchange) {
                   std::vector<std::unique_ptr<NumberedBatch>> batches;
                   for (int n = 0; n < 30; ++n)
                     batches.push_back(std::make_unique<NumberedBatch>(n, exchange.ranks()));
                   for (const bool gradient : {false, true}) {
                     batches[0]->Send(gradient);
                     for (size_t n = 1; n < batches.size(); ++n) {
                       batches[n]->Send(gradient);
                       batches[n - 1]->Answer(gradient);
                       batches[n - 1]->Check(gradient);
                     }
                     batches.back()->Answer(gradient);
                     batches.back()->Check(gradient);
                   }
                 });
  }
}

TEST(RowExchange, OfASlowNetworkArrivesAfterItsDelay) {
  const ExchangeDelay slow{.delay = std::chrono::milliseconds(20)};
  OnThreeRanks({.tokens = NumberedBatch::kTokens}, [&](ExpertExchange& exchange) {
    ExpertRanks ranks = exchange.ranks();
    DelayedDispatcher delayed(*ranks.dispatcher, slow);
    ranks.dispatcher = &delayed;
    NumberedBatch batch(1, ranks);
    for (const bool gradient : {false, true}) {
      const auto begin = std::chrono::steady_clock::now();
      batch.Send(gradient);
      batch.Answer(gradient);
      EXPECT_GE(std::chrono::steady_clock::now() - begin, slow.delay);
      batch.Check(gradient);
      EXPECT_GE(std::chrono::steady_clock::now() - begin, 2 * slow.delay);
    }
  });
}

}  // namespace
}  // namespace switchyard::train
