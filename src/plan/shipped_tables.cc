// Cost tables of cards. H200 and H100 are from measured kernels of this program; the others are
// from data sheets, with the efficiency of the measured cards.
#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/format.h"
#include "plan/cost_table.h"

namespace switchyard::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6, kNano = 1e-9;

// From recorded results of `bench kernels` (docs/planning.md, "Time"), as `bench calibrate` derives
// them. Router, selection, links and the time per step: docs/performance.md, "H200", and
// docs/notes/gpu.md, "Kernel times of Qwen3-30B-A3B" and "Exchange over NVLink".
CostTable H200() {
  CostTable t;
  t.name = "h200";
  t.source = "kernels of this program measured on H200 (docs/planning.md, docs/notes/gpu.md)";
  t.measured = true;
  t.memory_bytes = 139.8 * (int64_t{1} << 30);
  t.bandwidth = 3.9 * kTera;  // small ops at 4096 rows
  t.weights = {{"bfloat16", 4.36 * kTera},
               {"fp8-block", 4.26 * kTera},
               {"int4-group", 1.76 * kTera},
               {"mxfp4", 2.07 * kTera},
               {"nvfp4", 1.61 * kTera}};
  t.products["bfloat16"].points = {{64, 241 * kTera},  {128, 429 * kTera},  {256, 401 * kTera},
                                   {512, 622 * kTera}, {1024, 613 * kTera}, {4096, 699 * kTera}};
  t.products["fp8-block"].points = {{64, 469 * kTera},  {128, 520 * kTera},   {256, 790 * kTera},
                                    {512, 705 * kTera}, {1024, 1030 * kTera}, {4096, 1230 * kTera}};
  t.experts["bfloat16"].points = {
      {65, 256 * kTera}, {189, 447 * kTera}, {388, 494 * kTera}, {4429, 727 * kTera}};
  t.experts["fp8-block"].points = {
      {65, 467 * kTera}, {189, 571 * kTera}, {388, 666 * kTera}, {4429, 1330 * kTera}};
  // Packed formats by rows of whole tiles.
  t.experts["mxfp4"].points = {
      {32, 240 * kTera}, {64, 397 * kTera}, {192, 542 * kTera}, {1024, 569 * kTera}};
  t.experts["nvfp4"].points = {
      {32, 175 * kTera}, {64, 287 * kTera}, {192, 474 * kTera}, {1024, 502 * kTera}};
  t.experts["int4-group"].points = {
      {32, 184 * kTera}, {64, 291 * kTera}, {192, 491 * kTera}, {1024, 509 * kTera}};
  // Experts of Qwen3-30B-A3B, with the kernels around them.
  t.small_experts["bfloat16"].points = {
      {1, 4.15 * kTera},  {2.27, 9.53 * kTera}, {8.02, 33.2 * kTera},
      {16, 64.3 * kTera}, {32, 124 * kTera},    {64, 229 * kTera},
      {128, 314 * kTera}, {256, 444 * kTera},   {512, 555 * kTera}};
  t.small_experts["fp8-block"].points = {
      {1, 7.49 * kTera},  {2.27, 18.1 * kTera}, {8.02, 63.2 * kTera},
      {16, 121 * kTera},  {32, 220 * kTera},    {64, 359 * kTera},
      {128, 521 * kTera}, {256, 708 * kTera},   {512, 834 * kTera}};
  // 512 tokens whose rows are uneven, in seconds per column and row.
  t.uneven = {{"bfloat16", 9.25e-11}, {"fp8-block", 2.68e-10}};
  // Each kernel starts early, so these are the times that it adds to a chain of kernels.
  t.op_seconds = 2.1 * kMicro;
  t.product_seconds = 2.63 * kMicro;
  t.grouped_seconds = 5.02 * kMicro;
  t.chain_seconds = 1.79 * kNano;  // products of 256 columns, by K of 2048 and 8192
  t.chains["bfloat16"].points = {{1, 1.53 * kNano},   {8, 1.55 * kNano},  {16, 1.6 * kNano},
                                 {32, 1.48 * kNano},  {64, 2.21 * kNano}, {128, 3.7 * kNano},
                                 {256, 5.73 * kNano}, {512, 5.61 * kNano}};
  t.chains["fp8-block"].points = {{1, 1.02 * kNano},  {8, 1.04 * kNano},  {16, 1.02 * kNano},
                                  {32, 1.41 * kNano}, {64, 1.65 * kNano}, {128, 3.31 * kNano},
                                  {256, 4.7 * kNano}, {512, 4.78 * kNano}};
  t.step_seconds = 80 * kMicro;  // the gap between two graphs: 59 to 110 us
  // 8192 tokens and 128 experts take 78 us for the logits, and 32 us for selection and order.
  t.router_flops = 55 * kTera;
  t.select_seconds = 24 * kMicro / (8192 * 128);  // beyond the starts of the ops
  t.attention_seconds = 8 * kMicro;
  t.decode_bytes.points = {{8, 3.44 * kTera}};
  t.tile_seconds.points = {{128, 0.0193 * kMicro},
                           {520, 0.0001 * kMicro},
                           {1024, 0.0141 * kMicro},
                           {2048, 0.0001 * kMicro},
                           {4096, 0.0001 * kMicro}};
  t.prompt_flops.points = {
      {256.5, 233 * kTera}, {512.5, 215 * kTera}, {2048.5, 478 * kTera}, {15360.5, 519 * kTera}};
  t.prompt_head_dims.points = {{64, 0.703}, {128, 1}};
  t.latent_seconds = 35.1 * kMicro;
  t.latent_bytes.points = {{16, 2.73 * kTera}};
  t.latent_flops = 317 * kTera;
  t.latent_decode_flops.points = {{520, 193 * kTera}, {4096, 317 * kTera}};
  t.latent_prompt_flops.points = {
      {256.5, 153 * kTera}, {512.5, 217 * kTera}, {2048.5, 300 * kTera}, {15360.5, 329 * kTera}};
  // Not measured: the kernel loads a float32 from shared memory for each multiplication, which is
  // possible at a quarter of the peak rate of 67 TFLOP/s.
  t.entry_flops = 15 * kTera;
  t.head_bytes = 1.76 * kTera;
  t.host = {.seconds = 8 * kMicro, .rate = 340 * kGiga};
  // NCCL transfers rows between hosts. This was not measured; the latency is that of DeepEP's
  // published low-latency times over RDMA.
  t.network = {.seconds = 60 * kMicro, .rate = 0};
  t.all_reduce.points = {{8e3, 3.2 * kMicro},
                         {64e3, 5.5 * kMicro},
                         {1e6, 13.8 * kMicro},
                         {16e6, 93.8 * kMicro},
                         {64e6, 319 * kMicro}};
  return t;
}

// A card whose rates are those of the H200, scaled by the ratios of memory bandwidth, product rate
// and link rate in the data sheets.
struct Card {
  const char* name;
  double gib, memory_tbs;  // capacity, and peak bandwidth in TB/s
  double bf16_tflops;      // dense; H200: 989
  double fp8_tflops;       // 0: no FP8 products; H200: 1979
  double link_gbs;         // one direction, per card; H200's NVLink: 450
};

constexpr Card kCards[] = {
    {"h100", 79.1, 3.35, 989, 1979, 450},  {"h800", 79.1, 3.35, 989, 1979, 200},
    {"h20", 95.1, 4.0, 148, 296, 450},     {"a100", 79.3, 2.04, 312, 0, 300},
    {"b200", 178.0, 8.0, 2250, 4500, 900}, {"l40s", 44.7, 0.864, 362, 733, 32},
    {"rtx4090", 23.6, 1.008, 165, 330, 32}};

// Small experts with few rows take the time to read their weights and an overhead, which does not
// depend on the memory's bandwidth. From twice the time of the weights on, arithmetic is the limit.
// t->weights are scaled by `memory` already.
void ScaleSmallExperts(double memory, CostTable* t) {
  for (auto& [format, curve] : t->small_experts) {
    const double bytes = format == "bfloat16" ? 2 : 1;
    const double reads = CostTable::kSmallExpert * bytes / t->weights.at(format);
    for (auto& [rows, rate] : curve.points) {
      const double flops = 2 * rows * CostTable::kSmallExpert, seconds = flops / rate;
      const double limited = std::clamp(2 - seconds / (reads * memory), 0.0, 1.0);
      rate = flops / (seconds + limited * reads * (1 - memory));
    }
  }
}

CostTable FromSheet(const Card& card) {
  CostTable t = H200();
  t.name = card.name;
  const double memory = card.memory_tbs / 4.8, products = card.bf16_tflops / 989;
  const double link = card.link_gbs / 450;
  t.memory_bytes = card.gib * static_cast<double>(int64_t{1} << 30);
  const auto scale = [](double by, Curve* curve) {
    for (auto& point : curve->points) point.second *= by;
  };
  t.bandwidth *= memory;
  for (auto& entry : t.weights) entry.second *= memory;
  scale(memory, &t.decode_bytes);
  scale(memory, &t.latent_bytes);
  t.head_bytes *= memory;
  for (auto* curves : {&t.products, &t.experts, &t.small_experts})
    for (auto& [format, curve] : *curves)
      scale(format == "fp8-block" && card.fp8_tflops > 0 ? card.fp8_tflops / 1979 : products,
            &curve);
  if (products == 1) {
    ScaleSmallExperts(memory, &t);
  } else {
    t.small_experts.clear();  // the rates are those of memory and of arithmetic, by rows
  }
  if (card.fp8_tflops == 0)
    for (auto* curves : {&t.products, &t.experts, &t.chains})
      (*curves)["fp8-block"] = (*curves)["bfloat16"];
  for (double* rate : {&t.decode_flops, &t.latent_flops, &t.router_flops, &t.entry_flops})
    *rate *= products;
  t.select_seconds /= products;
  scale(products, &t.prompt_flops);
  scale(products, &t.latent_prompt_flops);
  scale(products, &t.latent_decode_flops);
  t.host.rate *= link;
  for (auto& [bytes, seconds] : t.all_reduce.points)
    seconds = 3.2 * kMicro + (seconds - 3.2 * kMicro) / link;
  t.measured = std::string(card.name) == "h100";
  t.source = t.measured
                 ? "kernels of this program measured on H200, with H100's memory bandwidth; "
                   "H100 has the same compute units and NVLink"
                 : "roofline: data sheet rates, with the efficiency of H200's measured kernels; "
                   "not measured";
  return t;
}

// Lower case, without separators.
std::string Plain(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::erase_if(name, [](char c) { return c == '-' || c == '_' || c == ' '; });
  return name;
}

}  // namespace

std::vector<std::string> ShippedNames() {
  std::vector<std::string> names = {"h200"};
  for (const Card& card : kCards) names.emplace_back(card.name);
  return names;
}

std::optional<CostTable> ShippedTableOf(const std::string& device) {
  const std::string name = Plain(device);
  for (const char* variant : {"pcie", "nvl", "mig", "laptop", "gh200", "gb200"})
    if (name.find(variant) != std::string::npos) return std::nullopt;
  std::string found;  // the longest name, because "h200" contains "h20"
  for (const std::string& card : ShippedNames())
    if (name.find(card) != std::string::npos && card.size() > found.size()) found = card;
  if (found.empty()) return std::nullopt;
  return ShippedTable(found);
}

CostTable ShippedTable(const std::string& card) {
  const std::string name = Plain(card);
  if (name == "h200") return H200();
  for (const Card& known : kCards)
    if (name == known.name) return FromSheet(known);
  throw Invalid(
      "--gpus: card {} is unknown; want one of {}, or --cost-table with the JSON of `switchyard "
      "bench calibrate` on that card",
      card, Joined(ShippedNames(), ", "));
}

CostTable CpuDefaults(int cpus) {
  // Rates of one thread of a server CPU with AVX-512: 118 GFLOP/s in float32, 236 in bfloat16.
  const double threads = std::max(1, cpus);
  CostTable t;
  t.name = "cpu";
  t.source =
      "roofline: rates of Zen 4 threads (docs/performance.md); not this machine's. "
      "`switchyard bench calibrate` measures it";
  t.cuda = false;
  t.bandwidth = std::min(17e9 * threads, 300e9);
  // FP8 and 4-bit weights are unpacked for each product.
  t.weights = {{"bfloat16", t.bandwidth},
               {"fp8-block", 0.57 * t.bandwidth},
               {"mxfp4", 0.35 * t.bandwidth},
               {"nvfp4", 0.35 * t.bandwidth},
               {"int4-group", 0.35 * t.bandwidth}};
  const auto curve = [&](double peak) {
    return Curve{.points = {{1, 0.25 * peak * threads},
                            {8, 0.7 * peak * threads},
                            {64, 0.75 * peak * threads}}};
  };
  t.products = {
      {"bfloat16", curve(236e9)}, {"float32", curve(118e9)}, {"int8-channel", curve(473e9)}};
  t.op_seconds = t.product_seconds = t.grouped_seconds = 5e-6;
  t.select_seconds = 5e-9 / threads;
  t.attention_seconds = 1e-5;
  t.decode_bytes.points = {{1, 0.8 * t.bandwidth}};
  t.latent_bytes.points = {{1, 0.8 * t.bandwidth}};
  t.decode_flops = t.latent_flops = 100e9 * threads;
  t.entry_flops = 12e9 * threads;  // plain loops; an estimate
  t.prompt_flops.points = {{256, 125e9 * threads}, {16384, 154e9 * threads}};
  t.latent_prompt_flops = t.prompt_flops;
  t.host = {.seconds = 5e-6, .rate = t.bandwidth / 4};
  t.network = {.seconds = 50e-6, .rate = 0};
  t.exchange_overlaps = false;
  return t;
}

}  // namespace switchyard::plan
