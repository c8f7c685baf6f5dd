// The rates of one kind of device, from which the time of a step is computed.
//
// A table comes from `switchyard bench calibrate`, from the shipped tables (shipped_tables.cc), or
// from a data sheet. Only kernels and links are measured, never whole steps.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::plan {

// A positive function of a positive size: linear between points in logarithms of both, constant
// before the first and after the last point.
struct Curve {
  std::vector<std::pair<double, double>> points;  // ascending sizes

  bool empty() const { return points.empty(); }
  double At(double size) const;
};

// Rates of measured work, by its size, so that more work never takes less time (size / rate). Where
// noise has reversed the times of neighbours, they get their mean (isotonic regression by pooling:
// Ayer and others, 1955, "An empirical distribution function for sampling with incomplete
// information").
Curve WithGrowingTimes(const Curve& rates);

// Transfers between ranks.
struct Link {
  double seconds = 0;  // time of the smallest transfer, with its synchronization
  double rate = 0;     // bytes per second that one rank sends
};

struct CostTable {
  std::string name;       // "h200"
  std::string source;     // where the figures come from
  bool measured = false;  // false: from data sheets
  bool cuda = true;
  double memory_bytes = 0;  // memory of a device
  double bandwidth = 0;     // bandwidth of element-wise ops: bytes per second, read and written

  // Keys are Name(WeightFormat), followed by the format of rounded rows if there is one:
  // "int8-channel, int8-token". `weights`: bytes per second of weights that a product reads.
  // `products`: FLOP per second by rows of each matrix. `experts`: the same for grouped products,
  // by rows of each expert that has rows. For a format without an entry, the entry without rounded
  // rows is used, else that of bfloat16; without `experts`, `products` apply. On GPUs the rates of
  // experts in packed 4-bit formats are by rows of whole tiles: kernels compute all rows of a tile.
  std::map<std::string, double> weights;
  std::map<std::string, Curve> products, experts;
  // `experts` are for experts of kLargeExpert weights. `small_experts` are the same for experts of
  // kSmallExpert weights, whose products have few tiles. Rates in between follow from the logarithm
  // of the size. A format without an entry here has the rates of `experts` at all sizes.
  static constexpr double kSmallExpert = 3.0 * 2048 * 768, kLargeExpert = 3.0 * 7168 * 3072;
  std::map<std::string, Curve> small_experts;
  // Seconds that the two grouped products of a layer take longer if experts have uneven rows: the
  // last tiles of the fullest experts leave most of the device idle. For each column of the two
  // products, and each row by which the standard deviation of the experts' rows exceeds that of
  // independent tokens. At most kMostUneven rows, because tiles have a limited number of rows.
  static constexpr double kMostUneven = 80;
  std::map<std::string, double> uneven;

  double op_seconds = 0;       // start of a small op
  double product_seconds = 0;  // start of a product
  double grouped_seconds = 0;  // start of a grouped product
  double chain_seconds = 0;    // time of one column: the additions of a sum are sequential
  // The same for products of several rows, by format and rows: the time of a column of a product
  // whose tiles fill a part of the device only. Without an entry: chain_seconds.
  std::map<std::string, Curve> chains;
  double step_seconds = 0;    // time per step: scheduling, upload, sampling of tokens
  double select_seconds = 0;  // expert selection: time per expert and token
  double router_flops = 0;    // products of router logits, which have float32 sums; 0: `products`

  // Attention; `latent` is for MLA. decode_bytes: bytes per second at which decode reads keys and
  // values, by the number of query heads that share a KV head. flops: FLOP per second of products;
  // for prompts, by the mean number of keys of a row.
  double attention_seconds = 0;
  Curve decode_bytes, latent_bytes;
  double decode_flops = 0, latent_flops = 0;
  Curve prompt_flops, latent_prompt_flops;
  // latent_seconds: the least time of a call of latent attention; 0: attention_seconds, in addition
  // to the time of its work. latent_decode_flops: as latent_flops, by keys; empty: latent_flops.
  // head_bytes: bytes per second, read and written, of the float32 rows of MLA's products with one
  // matrix for each head; 0: only the products count.
  double latent_seconds = 0, head_bytes = 0;
  Curve latent_decode_flops;
  // FLOP per second of attention to compressed entries (kernels::AttendToEntries), whose kernels
  // use no tensor cores; on CPUs of their indexers too. 0: the rates of latent attention.
  double entry_flops = 0;
  // prompt_flops are for heads of 128. Narrower heads have fewer products for each exponential. The
  // relative rate, by the width of a head; empty: 1.
  Curve prompt_head_dims;
  // decode_bytes and prompt_flops with a cache of float32, which other kernels read on CPUs. Empty:
  // the same.
  Curve float32_decode_bytes, float32_prompt_flops;
  // Decode with grouped attention: seconds of the whole device for each tile (a sequence and a KV
  // head), by the keys of the sequence. A tile starts from nothing: page table, queries, first
  // keys. On GPUs reads of many keys hide this, so the time decreases with the keys. Empty: none.
  Curve tile_seconds;

  // Ranks of one host, and ranks of several hosts. A host's NICs are given by the cluster.
  Link host, network;
  double network_share = 0.85;  // achieved share of a NIC's nominal rate
  Curve all_reduce;             // seconds by bytes, four ranks of a host; empty: from the link
  // Whether an exchange proceeds while the rank computes.
  bool exchange_overlaps = true;

  // One of several ranks that share the device's memory and units: each has `share` of the rates.
  CostTable Shared(double share) const;

  double WeightRate(const std::string& format) const;
  double ProductRate(const std::string& format, double rows) const;
  // `weights`: of an expert, in all its products.
  double ExpertRate(const std::string& format, double rows, double weights = kLargeExpert) const;
  double ChainSeconds(const std::string& format, double rows) const;
};

// Error kInvalid names the file, the key, and what is expected.
CostTable ReadCostTable(const std::filesystem::path& file);
CostTable ParseCostTable(const std::string& json, const std::string& name);
std::string ToJson(const CostTable& table);

// The shipped table of a card ("h200", any case). Error kInvalid lists the known names.
CostTable ShippedTable(const std::string& card);
std::vector<std::string> ShippedNames();
// The shipped table of the GPU that the driver calls `device` ("NVIDIA H200"). nullopt if there is
// none, also for a variant with other rates (PCIe, NVL, or a part of a card).
std::optional<CostTable> ShippedTableOf(const std::string& device);
// A CPU without calibration: `cpus` threads, from rates per thread.
CostTable CpuDefaults(int cpus);

}  // namespace switchyard::plan
