// The time of one step of a rank, by part and by what limits it. The cost of each phase is computed
// from the sizes of the model and a cost table. The list of operations that the engine runs
// (schedule/serve.h) determines which phases overlap.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "plan/cost_table.h"
#include "plan/expert_shares.h"
#include "plan/layout.h"
#include "plan/uniform_routing.h"
#include "quant/formats.h"
#include "schedule/serve.h"

namespace switchyard::plan {

enum class Part : uint8_t {
  kAttention,
  kDense,
  kRouter,
  kDispatch,
  kExperts,
  kShared,
  kCombine,
  kCollectives,
  kHead,
  kHost,
  kStages,  // hidden rows between pipeline stages, and waits for other stages
  kCount
};
const char* Name(Part part);

// What limits an op: the memory's bandwidth, arithmetic, links, the time to start it, or ranks that
// have not arrived.
enum class Limit : uint8_t { kBandwidth, kFlops, kNetwork, kStart, kWait, kCount };
const char* Name(Limit limit);

struct Cost {
  std::array<double, static_cast<size_t>(Part::kCount)> parts{};    // seconds
  std::array<double, static_cast<size_t>(Limit::kCount)> limits{};  // the same seconds

  void Add(Part part, Limit limit, double seconds) {
    parts[static_cast<size_t>(part)] += seconds;
    limits[static_cast<size_t>(limit)] += seconds;
  }
  void Add(const Cost& other, double times = 1);
  double sum() const;
};

// Formats of a model's matrices in the memory of its ranks.
struct MatrixFormat {
  // "bfloat16", or with the format of rounded input rows: "int8-channel, int8-token". Tables have
  // rates by this name.
  std::string name = "bfloat16";
  double bytes = 2;  // bytes of a weight, including its scales
  bool fp8_rows = false;
};
struct ModelFormats {
  MatrixFormat attention, dense, experts, shared, router, head;
};
ModelFormats FormatsOf(const ModelConfig& model, bool cuda, bool hopper);

// The rows of one attention group in a step.
struct StepShape {
  bool decode = true;
  double sequences = 1;
  double rows = 1;  // decode: the number of sequences
  double keys = 1;  // keys that a row attends to, on average
  double logit_rows = 1;
  // Without `decode`: how many of the rows are of decoding sequences, and the keys of each.
  double decode_rows = 0, decode_keys = 0;
  // Rows of a group, averaged over all groups, which share the experts. 0: all groups have `rows`.
  double mean_rows = 0;
  // Rows of a rank's experts divided by the mean of the ranks, with random variation; the exchange
  // and the experts of this rank take the time of these rows. 0: Routing applies.
  double expert_share = 0;
};

struct StepTime {
  double seconds = 0;  // time from start to end
  Cost work;           // sum over all operations; more than `seconds` if some overlap
  double hidden() const { return work.sum() - seconds; }
};

// Assumptions about routing.
struct Routing {
  // Rows of the most loaded rank divided by the mean, in addition to random variation; 1: even.
  double imbalance = 1.0;
  // Of the experts of two tokens of a prompt (UniformRouting); 0: independent.
  double correlation = 0;
};

// The ranks of one engine of a layout.
struct Ranks {
  MeshShape mesh;
  std::string a2a = "none";
  bool low_latency = false;
  int redundant = 0;
  bool tbo = false, sbo = false;
  int64_t tbo_min_tokens = 2;  // minimum tokens of all groups for two micro-batches
  DType row_dtype = DType::kBF16, kv_dtype = DType::kBF16;
  int ranks_of_host = 1;
  int nics = 1;         // NICs of a host; each is used by an equal number of its ranks
  double nic_rate = 0;  // bytes per second of a host's NICs together, nominal
};

class StepCosts {
 public:
  StepCosts(const ModelConfig& model, const ModelFormats& formats, const CostTable& table,
            const Ranks& ranks, const Routing& routing)
      : m_(model),
        f_(formats),
        t_(table),
        r_(ranks),
        routing_(routing),
        mesh_(ranks.mesh, 0),
        uniform_(UniformOf(model, ranks, routing)),
        kinds_(KindsOf(model, mesh_)),
        indexers_(IndexersOf(model)),
        by_token_(TokenRoutersOf(model)) {}

  // The time of a step in which all groups have this shape, apart from `mean_rows`. With `loads`,
  // every rank has the rows of the most loaded one of each layer, for which the others wait.
  StepTime Of(const StepShape& shape, const ExpertShares* loads = nullptr) const;

  // StepShape::expert_share for a rank whose expected share is `share`, in a layer whose most
  // loaded rank gets `variation` more. Rounded to a 32nd of the mean, so that few values occur.
  static double WithVariation(double share, double variation);
  // ExpertShares::Variation for the rows of a step, or of a micro-batch.
  double Variation(const StepShape& shape, const ExpertShares& loads, int layer) const;

  // What a rank sends in an exchange.
  struct Sent {
    double start = 0;          // seconds
    double near = 0, far = 0;  // bytes to ranks of this host, and to ranks of other hosts
  };
  // The cost of one phase of a layer. The transfer of an exchange is separate from computation.
  // `transfer` is its time if no other exchange uses the links.
  struct PhaseCost {
    Cost compute, transfer;
    Sent sent;
  };
  PhaseCost Of(const StepShape& shape, bool moe, schedule::Phase phase, bool split) const;
  // Embedding, head and the host's work of a whole step.
  Cost Ends(const StepShape& shape) const;

  // Whether a step is divided into two micro-batches, and the shape of each part.
  bool TwoBatches(const StepShape& shape) const;
  StepShape PartOf(const StepShape& shape) const;
  // The operations of the engine's decoder. The list lives as long as the thread.
  const std::vector<schedule::Operation>& Program(bool two_batches, bool decode) const;

  bool exchanges() const { return r_.a2a != "none" && r_.mesh.ep > 1; }
  // Whether combine starts before the down projection (single-batch overlap).
  bool down_under_combine() const { return r_.sbo && exchanges(); }
  // Parts in which combine then returns the outputs.
  static constexpr int kCombineParts = 4;
  const Ranks& ranks() const { return r_; }
  const CostTable& table() const { return t_; }
  const ModelConfig& model() const { return m_; }
  // Bytes per second of a host's NICs together.
  double nic_rate() const { return r_.nic_rate * t_.network_share; }

 private:
  static constexpr double kFloat = sizeof(float);  // bytes of an element of a row

  // Layers with equal attention.
  struct LayerKind {
    double keys = 0;      // the largest number of keys of a row
    double kv_heads = 1;  // of this rank
    // With compressed attention: LayerConfig::compress and overlaps. `keys` is then the window.
    int32_t ratio = 0;
    bool overlaps = false;
    double share = 0;  // the fraction of layers of this kind
  };
  static std::vector<LayerKind> KindsOf(const ModelConfig& model, const Mesh& mesh);
  static double IndexersOf(const ModelConfig& model) {
    double count = 0;
    for (int64_t i = 0; i < model.num_layers(); ++i) count += model.has_indexer(i) ? 1 : 0;
    return count / static_cast<double>(model.layers.size());
  }
  static double TokenRoutersOf(const ModelConfig& model) {
    const auto routers = std::ranges::count(model.layers, true, &LayerConfig::moe);
    const auto by_token = std::ranges::count(model.layers, true, &LayerConfig::by_token);
    return routers > 0 ? static_cast<double>(by_token) / static_cast<double>(routers) : 0;
  }
  void Small(Part part, double bytes, Cost* cost, double ops = 1) const;
  // `rounded`: the op before writes the rows in the product's format, so that no pass quantizes
  // them.
  void Product(Part part, const MatrixFormat& format, double rows, double n, double k, Cost* cost,
               double seconds_of_start = -1, bool rounded = false) const;
  // A router, or the weights of residual streams.
  void FloatProduct(Part part, const MatrixFormat& format, double rows, double n, double k,
                    Cost* cost) const;
  // What a block does to the residual: the norm of its input, with the weighted sum of residual
  // streams, and the addition of its output. On GPUs without streams, the next norm adds it.
  void BeginBlock(Part part, double rows, Cost* cost) const;
  void EndBlock(Part part, double rows, Cost* cost) const;
  // The weighted sum of residual streams. `logits`: elements of the weights of a row.
  void CollapseStreams(Part part, double rows, double logits, Cost* cost) const;
  // Products with one unquantized matrix for each head (MLA), or for each output group (compressed
  // attention).
  void HeadProducts(double rows, double heads, double n, double k, Cost* cost) const;
  void Qkv(const StepShape& shape, Cost* cost) const;
  void Attend(const StepShape& shape, Cost* cost) const;
  void AttendRows(bool decode, double sequences, double rows, double keys, double least,
                  Cost* cost) const;
  // FLOP per second of latent attention. Decode: by the keys of a row; prompts: by their mean.
  double LatentRate(bool decode, double keys) const;
  // The same for compressed attention (docs/notes/deepseek_v4.md).
  void EntryQkv(const StepShape& shape, Cost* cost) const;
  void AddToBlocks(const StepShape& shape, double width, bool overlaps, Cost* cost) const;
  void AttendToEntries(bool decode, double sequences, double rows, double keys, Cost* cost) const;
  void Route(const StepShape& shape, Cost* cost) const;
  void Experts(const StepShape& shape, Cost* up, Cost* down) const;
  void Dense(const StepShape& shape, Cost* cost) const;
  void Shared(const StepShape& shape, Cost* cost) const;
  void Exchange(Part part, double rows_per_token, double row_bytes, const StepShape& shape,
                PhaseCost* cost) const;
  void Finish(const StepShape& shape, Cost* cost) const;
  void AllReduce(double bytes, int ranks, Cost* cost) const;
  void AllGather(double bytes, int ranks, Cost* cost) const;

  bool scatters() const { return r_.a2a != "none" || r_.mesh.dp > 1; }
  double Lane(const StepShape& shape) const;  // tokens that a rank routes
  double World(const StepShape& shape) const {
    return (shape.mean_rows > 0 ? shape.mean_rows : shape.rows) * r_.mesh.dp;
  }
  double DistinctRanks() const;
  // Expected number of a token's slots whose experts compute, if routing is even.
  static double ExpertsOfToken(const RouterConfig& router);
  double ExpertsOfToken() const { return ExpertsOfToken(m_.moe->router); }
  static UniformRouting UniformOf(const ModelConfig& model, const Ranks& ranks,
                                  const Routing& routing);
  RoutedTokens TokensOf(const StepShape& shape) const;  // of all groups

  const ModelConfig& m_;
  const ModelFormats& f_;
  const CostTable& t_;
  const Ranks r_;
  const Routing routing_;
  const Mesh mesh_;
  const UniformRouting uniform_;
  const std::vector<LayerKind> kinds_;
  const double indexers_;  // the fraction of layers with an indexer
  const double by_token_;  // the fraction of routers that read token ids
};

}  // namespace switchyard::plan
