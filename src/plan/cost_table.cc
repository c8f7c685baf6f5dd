#include "plan/cost_table.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/json.h"

namespace switchyard::plan {
namespace {

using nlohmann::json;

json Points(const Curve& curve) {
  json points = json::array();
  for (const auto& [size, value] : curve.points) points.push_back({size, value});
  return points;
}

// Reads the keys of one object, and reports keys that are unknown.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw Invalid("{}: want a JSON object", where_);
  }
  ~Reader() = default;

  void Number(const char* key, double* to) {
    if (const json* value = Find(key)) *to = Positive(*value, key);
  }
  void Bool(const char* key, bool* to) {
    const json* value = Find(key);
    if (!value) return;
    if (!value->is_boolean()) throw Invalid("{}: {} is not true or false", where_, key);
    *to = value->get<bool>();
  }
  void Text(const char* key, std::string* to) {
    const json* value = Find(key);
    if (!value) return;
    if (!value->is_string()) throw Invalid("{}: {} is not a string", where_, key);
    *to = value->get<std::string>();
  }
  void Points(const char* key, Curve* to) {
    if (const json* value = Find(key)) *to = CurveOf(*value, key);
  }
  void Numbers(const char* key, std::map<std::string, double>* to) {
    const json* value = Find(key);
    if (!value) return;
    if (!value->is_object()) throw Invalid("{}: {} is not an object", where_, key);
    for (const auto& [name, number] : value->items()) (*to)[name] = Positive(number, key);
  }
  void Curves(const char* key, std::map<std::string, Curve>* to) {
    const json* value = Find(key);
    if (!value) return;
    if (!value->is_object()) throw Invalid("{}: {} is not an object", where_, key);
    for (const auto& [name, points] : value->items()) (*to)[name] = CurveOf(points, key);
  }
  void OneLink(const char* key, Link* to) {
    const json* value = Find(key);
    if (!value) return;
    Reader link(*value, fmt::format("{}: {}", where_, key));
    link.Number("seconds", &to->seconds);
    link.Number("rate", &to->rate);
    link.Finish();
  }
  void Finish() const {
    for (const auto& [key, value] : object_.items())
      if (std::ranges::find(known_, key) == known_.end())
        throw Invalid("{}: unknown key \"{}\"", where_, key);
  }

 private:
  const json* Find(const char* key) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  double Positive(const json& value, const char* key) const {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
      throw Invalid("{}: {} is not a number of at least 0", where_, key);
    return value.get<double>();
  }
  Curve CurveOf(const json& value, const char* key) const {
    Curve curve;
    if (!value.is_array()) throw Invalid("{}: {} is not a list of pairs", where_, key);
    for (const json& pair : value) {
      if (!pair.is_array() || pair.size() != 2)
        throw Invalid("{}: {} is not a list of pairs", where_, key);
      curve.points.emplace_back(Positive(pair[0], key), Positive(pair[1], key));
      const size_t n = curve.points.size();
      if (curve.points[n - 1].first <= 0 || curve.points[n - 1].second <= 0 ||
          (n > 1 && curve.points[n - 1].first <= curve.points[n - 2].first))
        throw Invalid("{}: {} needs positive numbers, in ascending order", where_, key);
    }
    return curve;
  }

  const json& object_;
  const std::string where_;
  std::vector<std::string> known_;
};

// The first entry that exists: of the format, of the format without rounded rows, or of bfloat16.
// Null: none exists.
template <typename T>
const T* Find(const std::map<std::string, T>& entries, const std::string& format) {
  for (const std::string& name :
       {format, format.substr(0, format.find(',')), std::string("bfloat16")})
    if (const auto found = entries.find(name); found != entries.end()) return &found->second;
  return nullptr;
}

}  // namespace

double Curve::At(double size) const {
  if (points.empty()) return 0;
  if (size <= points.front().first) return points.front().second;
  if (size >= points.back().first) return points.back().second;
  const auto above = std::ranges::upper_bound(points, size, {}, &std::pair<double, double>::first);
  const auto& [x1, y1] = *above;
  const auto& [x0, y0] = *(above - 1);
  const double at = std::log(size / x0) / std::log(x1 / x0);
  return y0 * std::pow(y1 / y0, at);
}

Curve WithGrowingTimes(const Curve& rates) {
  struct Pool {
    double seconds = 0;  // the mean time of its points
    size_t points = 0;
  };
  std::vector<Pool> pools;
  for (const auto& [size, rate] : rates.points) {
    pools.push_back({size / rate, 1});
    while (pools.size() > 1 && pools[pools.size() - 2].seconds > pools.back().seconds) {
      const Pool last = pools.back();
      pools.pop_back();
      Pool& pool = pools.back();
      const auto own = static_cast<double>(pool.points), more = static_cast<double>(last.points);
      pool.seconds = (own * pool.seconds + more * last.seconds) / (own + more);
      pool.points += last.points;
    }
  }
  Curve grown = rates;
  auto point = grown.points.begin();
  for (const Pool& pool : pools)
    for (size_t i = 0; i < pool.points; ++i, ++point) point->second = point->first / pool.seconds;
  return grown;
}

CostTable CostTable::Shared(double share) const {
  CostTable t = *this;
  const auto scale = [&](Curve* curve) {
    for (auto& point : curve->points) point.second *= share;
  };
  t.bandwidth *= share;
  for (auto& entry : t.weights) entry.second *= share;
  for (auto* curves : {&t.products, &t.experts, &t.small_experts})
    for (auto& entry : *curves) scale(&entry.second);
  for (Curve* curve : {&t.decode_bytes, &t.latent_bytes, &t.prompt_flops, &t.latent_prompt_flops,
                       &t.latent_decode_flops, &t.float32_decode_bytes, &t.float32_prompt_flops})
    scale(curve);
  t.head_bytes *= share;
  for (auto& entry : t.uneven) entry.second /= share;
  t.decode_flops *= share;
  t.latent_flops *= share;
  t.select_seconds /= share;
  t.router_flops *= share;
  t.entry_flops *= share;
  for (auto& point : t.tile_seconds.points) point.second /= share;
  t.host.rate *= share;
  return t;
}

double CostTable::WeightRate(const std::string& format) const {
  const double* rate = Find(weights, format);
  return rate ? *rate : bandwidth;
}

double CostTable::ProductRate(const std::string& format, double rows) const {
  const Curve* curve = Find(products, format);
  return curve ? curve->At(rows) : 0;
}

double CostTable::ExpertRate(const std::string& format, double rows, double weights) const {
  const bool own = experts.contains(format) || !products.contains(format);
  const Curve* curve = own ? Find(experts, format) : nullptr;
  const double large = curve ? curve->At(rows) : ProductRate(format, rows);
  const auto narrow = small_experts.find(format);
  if (narrow == small_experts.end() || narrow->second.empty() || large <= 0) return large;
  const double small = narrow->second.At(rows);
  const double at = std::clamp(
      std::log(weights / kSmallExpert) / std::log(kLargeExpert / kSmallExpert), 0.0, 1.0);
  return small * std::pow(large / small, at);
}

double CostTable::ChainSeconds(const std::string& format, double rows) const {
  const Curve* curve = Find(chains, format);
  return curve && !curve->empty() ? curve->At(rows) : chain_seconds;
}

CostTable ParseCostTable(const std::string& text, const std::string& name) {
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) throw Invalid("{}: not valid JSON", name);
  CostTable t;
  Reader reader(document, name);
  reader.Text("name", &t.name);
  reader.Text("source", &t.source);
  reader.Bool("measured", &t.measured);
  reader.Bool("cuda", &t.cuda);
  reader.Number("memory_bytes", &t.memory_bytes);
  reader.Number("bandwidth", &t.bandwidth);
  reader.Numbers("weights", &t.weights);
  reader.Curves("products", &t.products);
  reader.Curves("experts", &t.experts);
  reader.Curves("small_experts", &t.small_experts);
  reader.Numbers("uneven", &t.uneven);
  reader.Number("op_seconds", &t.op_seconds);
  reader.Number("product_seconds", &t.product_seconds);
  reader.Number("grouped_seconds", &t.grouped_seconds);
  reader.Number("chain_seconds", &t.chain_seconds);
  reader.Curves("chains", &t.chains);
  reader.Number("step_seconds", &t.step_seconds);
  reader.Number("select_seconds", &t.select_seconds);
  reader.Number("router_flops", &t.router_flops);
  reader.Number("attention_seconds", &t.attention_seconds);
  reader.Points("decode_bytes", &t.decode_bytes);
  reader.Points("latent_bytes", &t.latent_bytes);
  reader.Number("decode_flops", &t.decode_flops);
  reader.Number("latent_flops", &t.latent_flops);
  reader.Points("prompt_flops", &t.prompt_flops);
  reader.Points("latent_prompt_flops", &t.latent_prompt_flops);
  reader.Number("latent_seconds", &t.latent_seconds);
  reader.Points("latent_decode_flops", &t.latent_decode_flops);
  reader.Number("entry_flops", &t.entry_flops);
  reader.Number("head_bytes", &t.head_bytes);
  reader.Points("prompt_head_dims", &t.prompt_head_dims);
  reader.Points("float32_decode_bytes", &t.float32_decode_bytes);
  reader.Points("float32_prompt_flops", &t.float32_prompt_flops);
  reader.Points("tile_seconds", &t.tile_seconds);
  reader.OneLink("host", &t.host);
  reader.OneLink("network", &t.network);
  reader.Number("network_share", &t.network_share);
  reader.Points("all_reduce", &t.all_reduce);
  reader.Bool("exchange_overlaps", &t.exchange_overlaps);
  reader.Finish();
  if (t.bandwidth <= 0) throw Invalid("{}: bandwidth is missing", name);
  if (!t.products.contains("bfloat16") || t.products["bfloat16"].empty())
    throw Invalid("{}: products needs an entry bfloat16", name);
  return t;
}

CostTable ReadCostTable(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw NotFound("--cost-table {}: cannot be read", file.string());
  std::ostringstream text;
  text << in.rdbuf();
  return ParseCostTable(text.str(), file.string());
}

std::string ToJson(const CostTable& t) {
  json out = {{"name", t.name},
              {"source", t.source},
              {"measured", t.measured},
              {"cuda", t.cuda},
              {"memory_bytes", t.memory_bytes},
              {"bandwidth", t.bandwidth},
              {"weights", t.weights},
              {"uneven", t.uneven},
              {"op_seconds", t.op_seconds},
              {"product_seconds", t.product_seconds},
              {"grouped_seconds", t.grouped_seconds},
              {"chain_seconds", t.chain_seconds},
              {"step_seconds", t.step_seconds},
              {"select_seconds", t.select_seconds},
              {"router_flops", t.router_flops},
              {"attention_seconds", t.attention_seconds},
              {"decode_bytes", Points(t.decode_bytes)},
              {"latent_bytes", Points(t.latent_bytes)},
              {"decode_flops", t.decode_flops},
              {"latent_flops", t.latent_flops},
              {"prompt_flops", Points(t.prompt_flops)},
              {"latent_prompt_flops", Points(t.latent_prompt_flops)},
              {"latent_seconds", t.latent_seconds},
              {"latent_decode_flops", Points(t.latent_decode_flops)},
              {"entry_flops", t.entry_flops},
              {"head_bytes", t.head_bytes},
              {"prompt_head_dims", Points(t.prompt_head_dims)},
              {"float32_decode_bytes", Points(t.float32_decode_bytes)},
              {"float32_prompt_flops", Points(t.float32_prompt_flops)},
              {"tile_seconds", Points(t.tile_seconds)},
              {"host", {{"seconds", t.host.seconds}, {"rate", t.host.rate}}},
              {"network", {{"seconds", t.network.seconds}, {"rate", t.network.rate}}},
              {"network_share", t.network_share},
              {"all_reduce", Points(t.all_reduce)},
              {"exchange_overlaps", t.exchange_overlaps}};
  const std::pair<const char*, const std::map<std::string, Curve>*> all[] = {
      {"products", &t.products},
      {"experts", &t.experts},
      {"small_experts", &t.small_experts},
      {"chains", &t.chains}};
  for (const auto& [key, curves] : all) {
    out[key] = json::object();
    for (const auto& [format, curve] : *curves) out[key][format] = Points(curve);
  }
  return out.dump(1) + "\n";
}

}  // namespace switchyard::plan
