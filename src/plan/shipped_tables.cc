// Cost tables of cards. H200 and H100 are from measured kernels of this program; the others are
// from data sheets, with the efficiency of the measured cards.
#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/format.h"
#include "plan/cost_table.h"

namespace switchyard::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;

// Figures of docs/performance.md, "H200", and docs/notes/gpu.md: "Kernel times of Qwen3-30B-A3B",
// "GEMM of few rows", "Exchange over NVLink".
CostTable H200() {
  CostTable t;
  t.name = "h200";
  t.source = "kernels of this program measured on H200 (docs/performance.md, docs/notes/gpu.md)";
  t.measured = true;
  t.memory_bytes = 139.8 * (int64_t{1} << 30);
  t.bandwidth = 3.6 * kTera;  // small ops at 8192 rows: 3.1 to 4.0 TB/s
  t.weights = {{"bfloat16", 4.35 * kTera},
               {"fp8-block", 4.27 * kTera},
               {"mxfp4", 2.2 * kTera},
               {"nvfp4", 1.7 * kTera},
               {"int4-group", 1.8 * kTera}};
  t.products["bfloat16"].points = {
      {64, 350 * kTera}, {192, 450 * kTera}, {512, 634 * kTera}, {4096, 700 * kTera}};
  t.products["fp8-block"].points = {
      {64, 560 * kTera}, {190, 800 * kTera}, {1024, 940 * kTera}, {4096, 960 * kTera}};
  t.experts["bfloat16"].points = {
      {64, 350 * kTera}, {190, 450 * kTera}, {512, 620 * kTera}, {4096, 700 * kTera}};
  t.experts["fp8-block"].points = {
      {64, 560 * kTera}, {190, 868 * kTera}, {390, 1050 * kTera}, {4096, 1320 * kTera}};
  // Packed formats by rows of whole tiles, from their read rates up to 64 rows and from their times
  // relative to bfloat16's above.
  t.experts["mxfp4"].points = {
      {32, 247 * kTera}, {64, 450 * kTera}, {192, 378 * kTera}, {1024, 544 * kTera}};
  t.experts["nvfp4"].points = {
      {32, 191 * kTera}, {64, 326 * kTera}, {192, 336 * kTera}, {1024, 535 * kTera}};
  t.experts["int4-group"].points = {
      {32, 215 * kTera}, {64, 369 * kTera}, {192, 357 * kTera}, {1024, 459 * kTera}};
  // From "Decode at batch 1 on one H100": the time from the end of the previous kernel to the end
  // of this kernel, without the time of its bytes. Kernels that start early overlap.
  t.op_seconds = 2.35 * kMicro;
  t.product_seconds = 0.95 * kMicro;
  t.grouped_seconds = 3.5 * kMicro;
  t.chain_seconds = 0.08 * kMicro / 64;  // dependent products: 80 ns for 64 columns
  t.step_seconds = 80 * kMicro;          // the gap between two graphs: 59 to 110 us
  // 8192 tokens and 128 experts take 78 us for the logits, and 32 us for selection and order.
  t.router_flops = 55 * kTera;
  t.select_seconds = 24 * kMicro / (8192 * 128);  // beyond the starts of the ops
  t.attention_seconds = 14 * kMicro;
  t.decode_bytes.points = {{1, 3.9 * kTera}};
  t.latent_bytes.points = {{1, 3.1 * kTera}};
  // Decode of 256 sequences with 528 keys takes 68 us more than its reads and products take at full
  // rate (docs/notes/gpu.md, "Attention"), for 1024 tiles. With 4096 keys it runs at full rate.
  t.tile_seconds.points = {{512, 0.066 * kMicro}, {4096, 0.002 * kMicro}};
  t.decode_flops = 300 * kTera;
  t.latent_flops = 345 * kTera;
  t.prompt_flops.points = {{256, 260 * kTera}, {2048, 481 * kTera}, {15360, 505 * kTera}};
  t.prompt_head_dims.points = {{64, 0.57}, {128, 1}};  // prompts of 4096, and 2048 rows of 16384
  t.latent_prompt_flops.points = {{256, 200 * kTera}, {2048, 311 * kTera}, {15360, 344 * kTera}};
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
  for (auto* curves : {&t.products, &t.experts})
    for (auto& [format, curve] : *curves)
      scale(format == "fp8-block" && card.fp8_tflops > 0 ? card.fp8_tflops / 1979 : products,
            &curve);
  if (card.fp8_tflops == 0)
    for (auto* curves : {&t.products, &t.experts}) (*curves)["fp8-block"] = (*curves)["bfloat16"];
  for (double* rate : {&t.decode_flops, &t.latent_flops, &t.router_flops}) *rate *= products;
  t.select_seconds /= products;
  scale(products, &t.prompt_flops);
  scale(products, &t.latent_prompt_flops);
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
  t.prompt_flops.points = {{256, 125e9 * threads}, {16384, 154e9 * threads}};
  t.latent_prompt_flops = t.prompt_flops;
  t.host = {.seconds = 5e-6, .rate = t.bandwidth / 4};
  t.network = {.seconds = 50e-6, .rate = 0};
  t.exchange_overlaps = false;
  return t;
}

}  // namespace switchyard::plan
