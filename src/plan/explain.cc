// The decision tree of layouts (`plan --explain`): for each question, the numbers of the layout and
// the branch that it takes.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "kernels/cache_rows.h"
#include "model/weights/shard.h"
#include "plan/report.h"

namespace switchyard::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

class Tree {
 public:
  Tree(const Question& question, const Layout& layout)
      : q_(question), layout_(layout), e_(Evaluate(question, layout)) {}

  std::string Text() {
    text_ = Assumptions(q_, "prefill and decode share the ranks") + "\n";
    Add(fmt::format(
        "{}: {}", layout_.Name(),
        e_.accepted ? "the engine accepts it" : "the engine refuses it: " + e_.refused));
    Memory();
    WithinAHost();
    if (q_.model.has_moe()) Experts();
    Attention();
    if (q_.model.has_moe()) Exchange();
    if (layout_.mesh.pp > 1) Stages();
    if (!e_.accepted) {
      Beyond();
      return text_;
    }
    Overlap();
    Batch();
    text_ += Details(q_, e_);
    if (e_.best) text_ += "\n" + ServeCommand(q_, e_) + "\n";
    return text_;
  }

 private:
  void Add(const std::string& line) { text_ += line + "\n"; }
  void Ask(const std::string& question) { text_ += fmt::format("\n{}. {}\n", ++number_, question); }
  void Tell(const std::string& answer) { text_ += "   " + answer + "\n"; }

  // Bytes of weights of a rank of the stage with the most; 0 if the sizes cannot be divided that
  // way.
  double Weights(const Layout& layout) const {
    double most = 0;
    try {
      for (const ModelConfig& stage : ModelsOfStages(q_, layout, {}))
        most = std::max(most, WeightsOfRank(stage, layout.mesh).total());
    } catch (const Error&) {
      return 0;
    }
    return most;
  }

  void Memory() {
    Ask("How many devices are needed to hold the weights?");
    const double whole = Weights({}), usable = q_.cluster.memory * q_.config.mem_fraction_static;
    const double least = std::ceil(whole / usable);
    Tell(
        fmt::format("The whole model has {:.1f} GiB; a {} offers {:.1f} GiB "
                    "(--mem-fraction-static {}): at least {:.0f}.",
                    whole / kGiB, q_.cluster.cuda ? "device" : "host", usable / kGiB,
                    q_.config.mem_fraction_static, least));
    const double own = Weights(layout_);
    const int world = layout_.mesh.world();
    if (own > 0)
      Tell(fmt::format("This layout: {} ranks with {}{:.1f} GiB each{}.", world,
                       layout_.mesh.pp > 1 ? "at most " : "", own / kGiB,
                       q_.cluster.cuda && own > usable ? ": too much" : ""));
    if (least <= 1 && world == 1)
      Tell("One device is enough, so no rank waits for another: engines are replicated.");
    if (least <= 1 && world > 1)
      Tell("One device would be enough. More ranks shorten a step, and cost exchanges.");
  }

  void WithinAHost() {
    Ask("Do the ranks of an engine stay within a host?");
    const CostTable& t = q_.table;
    if (layout_.mesh.world() <= q_.cluster.per_node) {
      Tell(fmt::format("Yes: {} of {} devices of a node. A rank sends {:.0f} GB/s.",
                       layout_.mesh.world(), q_.cluster.per_node, t.host.rate / 1e9));
      return;
    }
    const double nic = q_.cluster.nics * q_.cluster.nic_gbit / 8 / q_.cluster.per_node;
    Tell(
        fmt::format("No: {} nodes. A rank sends {:.0f} GB/s over its share of the NICs and {:.0f} "
                    "GB/s within a host. Each exchange has a fixed cost of {:.0f} us.",
                    layout_.mesh.world() / q_.cluster.per_node, nic * t.network_share,
                    t.host.rate / 1e9, 1e6 * t.network.seconds));
  }

  void Experts() {
    const MoeModelConfig& moe = *q_.model.moe;
    const int moe_tp = layout_.mesh.tp / std::max(1, layout_.mesh.ep);
    Ask("Are experts divided by expert (EP) or by column (MoE-TP)?");
    Tell(fmt::format(
        "ep {} x MoE-TP {}: a rank has {:.0f} of {} experts, and {} of {} columns of "
        "each.",
        layout_.mesh.ep, moe_tp,
        static_cast<double>(moe.router.num_experts + layout_.redundant) / layout_.mesh.ep,
        moe.router.num_experts, moe.intermediate / std::max(1, moe_tp), moe.intermediate));
    constexpr int64_t kTile = 128;
    if (moe_tp > 1)
      Tell(moe.intermediate / moe_tp < kTile
               ? "Columns are narrower than a tile of 128, so products are inefficient: prefer EP."
               : "Columns still fill tiles of 128. All ranks of a slice have equal loads.");
    if (layout_.mesh.ep > 1)
      Tell(
          fmt::format("With EP the most loaded rank determines the time. Assumed: {:.2f} "
                      "times the mean load{}.",
                      q_.load.imbalance,
                      layout_.redundant > 0
                          ? fmt::format(", reduced by {} redundant experts", layout_.redundant)
                          : ""));
  }

  void Attention() {
    const AttentionConfig& a = q_.model.attention;
    const int attn_tp = layout_.mesh.tp / std::max(1, layout_.mesh.dp);
    Ask("Is attention divided by heads (TP) or by requests (DP)?");
    if (a.kind == AttentionConfig::Kind::kLatent) {
      Tell(
          fmt::format("MLA's latent cache is the same for all heads: with {} ranks in a group, "
                      "each token is stored {} times. DP attention stores it once.",
                      attn_tp, attn_tp));
    } else if (a.kind == AttentionConfig::Kind::kCompressed) {
      Tell(
          fmt::format("The row and the entries of a token are the same for all heads: with {} "
                      "ranks in a group, they are stored {} times. DP attention stores them once.",
                      attn_tp, attn_tp));
    } else {
      int64_t least = a.kv_heads, most = a.kv_heads;
      for (int64_t layer = 0; layer < q_.model.num_layers(); ++layer) {
        least = std::min(least, q_.model.kv_heads(layer));
        most = std::max(most, q_.model.kv_heads(layer));
      }
      Tell(fmt::format(
          "{} KV heads over {} ranks of a group{}.",
          least == most ? std::to_string(most) : fmt::format("{} to {}", least, most), attn_tp,
          attn_tp > least
              ? fmt::format(": {} ranks repeat each head{}, so more groups would save "
                            "cache",
                            attn_tp / least, least == most ? "" : " of the layers with the fewest")
              : ": no cache is stored twice"));
    }
    if (e_.accepted)
      Tell(
          fmt::format("{} group{}: {:.0f} bytes of cache per token and rank, {:.0f} tokens in all.",
                      layout_.mesh.dp, layout_.mesh.dp > 1 ? "s" : "",
                      e_.largest().memory.kv_per_token, e_.cache_tokens));
  }

  void Exchange() {
    Ask("Are rows exchanged (all-to-all), or are sums added (all-reduce)?");
    const double hidden = static_cast<double>(q_.model.hidden), tp = layout_.mesh.tp;
    const double k = q_.model.moe->router.top_k, ep = layout_.mesh.ep;
    const double all = 2 * (tp - 1) / tp * hidden * 4 * layout_.mesh.dp;
    const double ranks = ep * (1 - std::pow(1 - 1 / ep, k));
    const double sent = (ranks * hidden * 2 + k * hidden * 2) * (ep - 1) / ep;
    if (tp == 1) return Tell("Neither: one rank has all experts.");
    Tell(
        fmt::format("For a token of one group, an all-reduce moves {:.0f} KB on every rank. An "
                    "exchange sends {:.0f} KB, from one of {} ranks.",
                    all / layout_.mesh.dp / 1e3, sent / 1e3, layout_.mesh.ep));
    Tell(layout_.a2a == "none" ? "This layout adds sums."
                               : fmt::format("This layout exchanges rows, with {}.", layout_.a2a));
  }

  // The time and the busy part of each pipeline stage.
  void Stages() {
    Ask("Are layers divided into pipeline stages?");
    const int stages = layout_.mesh.pp;
    if (!Divides()) return Tell(e_.refused);
    const EnginePlan plan = e_.accepted ? e_.plan : PlanOnPaper();
    const LayoutCosts costs(q_, layout_, plan);
    const auto ranges = LayersOfStages(q_, layout_, plan);
    const auto input = static_cast<double>(q_.load.input);
    const double chunk = Chunk(plan), rows = std::min(chunk, layout_.mesh.dp * input);
    const double running = e_.best ? e_.best->running : OnPaper();
    const auto parts = costs.DecodeMicroBatches(running);
    const PassTime prefill = costs.PassOf(costs.PrefillShape(rows, input));
    const PassTime decode =
        costs.PassOf(costs.DecodeShape(parts.running, input + q_.load.output / 2.0));
    Tell(
        fmt::format("Yes: {} stages. A token sends {:.1f} KB of hidden rows to the next stage; a "
                    "stage has no collective with another one.",
                    stages, q_.model.residual_width() * 4 / 1e3));
    for (int i = 0; i < stages; ++i)
      Tell(fmt::format(
          "stage {}, layers {} to {}{}: {:.2f} ms of a prefill pass of {:.0f} tokens, "
          "{:.2f} ms of a decode pass of {:.0f} requests",
          i, ranges[i].begin, ranges[i].end - 1,
          i == 0            ? ", embedding"
          : i + 1 == stages ? ", head"
                            : "",
          1e3 * prefill.stages[i].seconds, rows, 1e3 * decode.stages[i].seconds, parts.running));
    const double chunks = std::max(1.0, std::ceil(layout_.mesh.dp * input / chunk));
    Tell(
        fmt::format("A prompt of {:.0f} tokens is {:.0f} chunk{}: with equal stages they are busy "
                    "m / (m + p - 1) = {:.0f} % of its prefill; here the slowest one {:.0f} %.",
                    input, chunks, chunks > 1 ? "s" : "", 100 * chunks / (chunks + stages - 1),
                    100 * chunks * prefill.slowest() / costs.PrefillSeconds(rows, input, chunks)));
    const double period = costs.Decode(running, input + q_.load.output / 2.0).seconds;
    Tell(fmt::format(
        "{:.0f} decoding requests take turns in {:.0f} passes: {:.2f} ms between "
        "tokens, the slowest stage is busy {:.0f} %.",
        running, parts.passes, 1e3 * period, 100 * parts.passes * decode.slowest() / period));
  }

  // The plan of a layout that the engine refuses, as if exchange and memory had no limits.
  EnginePlan PlanOnPaper() const {
    EnginePlan plan;
    plan.model = q_.model;
    plan.cuda = q_.cluster.cuda;
    plan.packs_experts = q_.cluster.card.starts_with("h");
    plan.ranks_of_host = std::min(layout_.mesh.world(), q_.cluster.per_node);
    plan.kv_dtype = DType::kBF16;
    plan.context_length = q_.model.max_position;
    plan.max_running_requests = 256;
    plan.chunked_prefill_size = layout_.chunk > 0 ? layout_.chunk / layout_.mesh.dp : kChunkOnPaper;
    plan.max_batch_tokens = plan.chunked_prefill_size;
    return plan;
  }
  // Prompt tokens of a prefill step of all groups.
  double Chunk(const EnginePlan& plan) const {
    return plan.chunked_prefill_size < 0
               ? static_cast<double>(q_.load.input)
               : static_cast<double>(layout_.mesh.dp) * plan.chunked_prefill_size;
  }
  // Concurrent requests of a layout that the engine refuses.
  double OnPaper() const { return q_.load.batch > 0 ? q_.load.batch : 128.0 * layout_.mesh.dp; }

  // Predicts the steps of a layout that the engine refuses, as if exchange and memory had no
  // limits.
  void Beyond() {
    const MeshShape& mesh = layout_.mesh;
    if (q_.cluster.devices() % mesh.world() != 0 || !Divides()) return;
    Ask("How long would its steps take, if the engine accepted it?");
    const EnginePlan plan = PlanOnPaper();
    const LayoutCosts costs(q_, layout_, plan);
    const double chunk = Chunk(plan), running = OnPaper();
    const auto input = static_cast<double>(q_.load.input);
    const StepTime prefill = costs.Prefill(chunk, input);
    const StepTime decode = costs.Decode(running, input + q_.load.output / 2.0);
    const double nodes = std::max(1.0, static_cast<double>(mesh.world()) / q_.cluster.per_node);
    Tell(fmt::format("Prefill of {:.0f} tokens: {:.1f} ms, {:.0f} tokens/s for each node.", chunk,
                     1e3 * prefill.seconds, chunk / prefill.seconds / nodes));
    Tell("  ms:" + StepText(prefill));
    Tell(fmt::format("Decode of {:.0f} requests: {:.2f} ms, {:.0f} tokens/s for each node.",
                     running, 1e3 * decode.seconds, running / decode.seconds / nodes));
    Tell("  ms:" + StepText(decode));
  }

  bool Divides() const {
    try {
      CheckSplits(q_.model, Mesh(layout_.mesh, 0), /*replicated_shared_expert=*/true);
      LayersOfStages(q_, layout_, {});
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void Overlap() {
    if (layout_.a2a == "none" || layout_.mesh.ep == 1 || !e_.best) return;
    Ask("Do two micro-batches hide the exchange (two-batch overlap)?");
    Layout other = layout_;
    other.tbo = !layout_.tbo;
    const Evaluation o = Evaluate(q_, other);
    const Point& p = *e_.best;
    if (!o.accepted) return Tell(fmt::format("{}: {}", other.Name(), o.refused));
    const LayoutCosts costs(q_, other, o.plan);
    const auto of = [&](const StepTime& with) { return 1e3 * with.seconds; };
    const StepTime decode = costs.Decode(p.running, q_.load.input + q_.load.output / 2.0);
    const StepTime prefill = costs.Prefill(p.prefill_rows, static_cast<double>(q_.load.input));
    Tell(fmt::format(
        "Here: prefill step {:.2f} ms, decode step {:.2f} ms. {} it: {:.2f} and {:.2f}.",
        of(p.prefill), of(p.decode), layout_.tbo ? "Without" : "With", of(prefill), of(decode)));
  }

  void Batch() {
    Ask("Which batch, and what limits it?");
    for (const Point& p : e_.points)
      Tell(
          fmt::format("{:>6.0f} requests: decode {:>7.2f} ms, ITL {:>7.2f} ms, TTFT {:>7.0f} ms, "
                      "{:>8.0f} output tokens/s of an engine",
                      p.running, 1e3 * p.decode.seconds, 1e3 * p.itl, 1e3 * p.ttft, p.output_rate));
    if (!e_.best) Tell("None meets the load: " + e_.refused);
  }

  static constexpr int32_t kChunkOnPaper = 8192;  // of each attention group

  const Question& q_;
  const Layout layout_;
  const Evaluation e_;
  std::string text_;
  int number_ = 0;
};

}  // namespace

std::string Explain(const Question& question, const Layout& layout) {
  return Tree(question, layout).Text();
}

}  // namespace switchyard::plan
