#include "train/optimizer/catalog.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/tensor.h"

namespace switchyard::train {

std::vector<std::string> GatherStrings(Collectives* all, const std::string& mine) {
  if (all == nullptr) return {mine};
  const auto size = static_cast<size_t>(all->size());
  std::vector<uint64_t> lengths(size);
  const uint64_t length = mine.size();
  all->AllGatherV(&length, lengths.data(), std::vector<size_t>(size, sizeof length));
  size_t total = 0;
  for (const uint64_t each : lengths) total += each;
  std::string joined(total, '\0');
  all->AllGatherV(mine.data(), joined.data(), std::vector<size_t>(lengths.begin(), lengths.end()));
  std::vector<std::string> out;
  for (size_t begin = 0; const uint64_t each : lengths) {
    out.push_back(joined.substr(begin, each));
    begin += each;
  }
  return out;
}

Catalog::Catalog(std::vector<Parameter<float>*> parameters, Collectives* all)
    : parameters_(std::move(parameters)), all_(all) {
  nlohmann::json mine = nlohmann::json::array();
  for (const Parameter<float>* p : parameters_) mine.push_back({p->name, p->shape});
  std::map<std::string, std::vector<int64_t>> shapes;
  const std::vector<std::string> lists = GatherStrings(all, mine.dump());
  for (int rank = 0; rank < size(); ++rank) {
    for (const auto& entry : nlohmann::json::parse(lists[static_cast<size_t>(rank)])) {
      const auto name = entry[0].get<std::string>();
      const auto shape = entry[1].get<std::vector<int64_t>>();
      const auto [owner, added] = owners_.emplace(name, rank);
      if (!added && owner->second == rank) {
        throw Invalid("the model has two tensors {} on rank {}", name, rank);
      }
      const auto known = shapes.emplace(name, shape).first;
      if (known->second != shape) {
        throw Invalid("tensor {} is {} on rank {} and {} on rank {}", name,
                      ShapeString(known->second), owner->second, ShapeString(shape), rank);
      }
    }
  }
  for (Parameter<float>* p : parameters_) {
    if (owners_.at(p->name) == this->rank()) owned_.push_back(p);
  }
  std::ranges::sort(owned_, {}, [](const Parameter<float>* p) { return p->name; });
}

std::vector<double> Catalog::Gather(const std::vector<double>& mine) const {
  CHECK_EQ(mine.size(), owned_.size());
  std::vector<size_t> bytes(static_cast<size_t>(size()));
  for (const auto& [name, owner] : owners_) bytes[static_cast<size_t>(owner)] += sizeof(double);
  std::vector<double> by_rank = mine;
  if (all_ != nullptr) {
    by_rank.resize(owners_.size());
    all_->AllGatherV(mine.data(), by_rank.data(), bytes);
  }
  std::vector<size_t> next(bytes.size());
  for (size_t rank = 1; rank < next.size(); ++rank) {
    next[rank] = next[rank - 1] + bytes[rank - 1] / sizeof(double);
  }
  std::vector<double> out;
  for (const auto& [name, owner] : owners_) {
    out.push_back(by_rank[next[static_cast<size_t>(owner)]++]);
  }
  return out;
}

}  // namespace switchyard::train
