#include "train/optimizer/catalog.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/tensor.h"

namespace switchyard::train {
namespace {

using Piece = CatalogTensor::Piece;

nlohmann::json Describe(const Parameter<float>& p) {
  const int along = p.slice.partial() ? p.slice.dimension : 0;
  return {p.name, p.whole_shape(), p.exact, along, p.slice.begin, p.shape.at(along)};
}

}  // namespace

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

Catalog::Catalog(std::vector<Parameter<float>*> parameters, Collectives* all, Collectives* tp,
                 const GradientGroups& copies)
    : parameters_(std::move(parameters)), all_(all), tp_(tp), copies_(copies) {
  nlohmann::json mine = nlohmann::json::array();
  for (const Parameter<float>* p : parameters_) mine.push_back(Describe(*p));
  const std::vector<std::string> lists = GatherStrings(all, mine.dump());
  for (int rank = 0; rank < size(); ++rank) Add(rank, lists[static_cast<size_t>(rank)]);
  CheckPieces();
  size_t turn = 0;
  for (auto& [name, tensor] : tensors_) {
    const size_t piece = tensor.cut() ? turn++ % tensor.pieces.size() : 0;
    tensor.writer = tensor.pieces[piece].owner;
  }
  for (Parameter<float>* p : parameters_) {
    for (const Piece& piece : tensors_.at(p->name).pieces)
      if (piece.begin == p->slice.begin && piece.owner == this->rank()) owned_.push_back(p);
  }
  std::ranges::sort(owned_, {}, [](const Parameter<float>* p) { return p->name; });
  tp_members_ = {rank()};
  if (tp_ != nullptr) {
    const int self = rank();
    tp_members_.resize(tp_->size());
    tp_->AllGatherV(&self, tp_members_.data(), std::vector<size_t>(tp_->size(), sizeof self));
  }
}

// Adds the tensors of one rank. `entries`: a JSON list of results of Describe. Called in rank
// order.
void Catalog::Add(int rank, const std::string& entries) {
  std::set<std::string> names;
  for (const auto& entry : nlohmann::json::parse(entries)) {
    const auto name = entry[0].get<std::string>();
    const auto shape = entry[1].get<std::vector<int64_t>>();
    if (!names.insert(name).second) {
      throw Invalid("the model has two tensors named {} on rank {}", name, rank);
    }
    const Piece piece{entry[4].get<int64_t>(), entry[5].get<int64_t>(), rank};
    const auto [at, added] = tensors_.emplace(
        name, CatalogTensor{.shape = shape, .exact = entry[2], .dimension = entry[3]});
    CatalogTensor& known = at->second;
    if (known.shape != shape) {
      throw Invalid("tensor {} is {} on rank {} and {} on rank {}", name, ShapeString(known.shape),
                    known.pieces[0].owner, ShapeString(shape), rank);
    }
    const auto same = std::ranges::find(known.pieces, piece.begin, &Piece::begin);
    if (same == known.pieces.end()) {
      known.pieces.push_back(piece);
    } else if (same->size != piece.size) {
      throw Invalid("tensor {}: ranks {} and {} have parts of different lengths", name, same->owner,
                    rank);
    }
  }
}

void Catalog::CheckPieces() const {
  for (const auto& [name, tensor] : tensors_) {
    int64_t next = 0;  // expected begin of the next piece; pieces are in rank order
    for (const Piece& piece : tensor.pieces) {
      if (piece.begin != next) break;
      next += piece.size;
    }
    if (next == tensor.shape[tensor.dimension]) continue;
    throw Invalid("tensor {}: the ranks' parts do not cover the whole of {}", name,
                  ShapeString(tensor.shape));
  }
}

std::vector<double> Catalog::Gather(const std::vector<double>& mine) const {
  CHECK_EQ(mine.size(), owned_.size());
  std::vector<size_t> bytes(static_cast<size_t>(size()));
  size_t pieces = 0;
  for (const auto& [name, tensor] : tensors_) {
    pieces += tensor.pieces.size();
    for (const Piece& piece : tensor.pieces)
      bytes[static_cast<size_t>(piece.owner)] += sizeof(double);
  }
  std::vector<double> by_rank = mine;
  if (all_ != nullptr) {
    by_rank.resize(pieces);
    all_->AllGatherV(mine.data(), by_rank.data(), bytes);
  }
  std::vector<size_t> next(bytes.size());
  for (size_t rank = 1; rank < next.size(); ++rank) {
    next[rank] = next[rank - 1] + bytes[rank - 1] / sizeof(double);
  }
  std::vector<double> out;
  for (const auto& [name, tensor] : tensors_) {
    for (const Piece& piece : tensor.pieces)
      out.push_back(by_rank[next[static_cast<size_t>(piece.owner)]++]);
  }
  return out;
}

std::vector<float> Catalog::GatherShards(const Parameter<float>& p,
                                         const std::vector<float>& mine) const {
  Collectives* const group = copies_.Of(p);
  CHECK(group != nullptr && group->size() == p.shards.members);
  const int64_t count = p.trained_count();
  std::vector<size_t> bytes;
  int64_t before = 0;  // elements of the members before the one with the first shard
  for (int member = 0; member < group->size(); ++member) {
    const int64_t size = p.shards.Of(member, count).size();
    bytes.push_back(static_cast<size_t>(size) * sizeof(float));
    if (member < p.shards.first) before += size;
  }
  std::vector<float> joined(static_cast<size_t>(count));
  group->AllGatherV(mine.data(), joined.data(), bytes);
  std::rotate(joined.begin(), joined.begin() + before, joined.end());
  return joined;
}

bool Catalog::GroupWrites(const std::string& name) const {
  return std::ranges::find(tp_members_, tensors_.at(name).writer) != tp_members_.end();
}

std::vector<float> Catalog::Assemble(const Parameter<float>& p,
                                     const std::vector<float>& part) const {
  const CatalogTensor& tensor = tensors_.at(p.name);
  CHECK(tp_ != nullptr && tensor.pieces.size() == tp_members_.size());
  int64_t unit = 1;  // elements of a row or a column
  for (size_t d = 0; d < tensor.shape.size(); ++d)
    if (static_cast<int>(d) != tensor.dimension) unit *= tensor.shape[d];
  std::vector<size_t> bytes;
  for (const Piece& piece : tensor.pieces)
    bytes.push_back(static_cast<size_t>(piece.size * unit) * sizeof(float));
  std::vector<float> joined(tensor.shape[tensor.dimension] * unit);
  tp_->AllGatherV(part.data(), joined.data(), bytes);
  if (tensor.writer != rank()) return {};
  if (tensor.dimension == 0) return joined;
  std::vector<float> whole(joined.size());
  const float* from = joined.data();
  for (const Piece& piece : tensor.pieces) {
    for (int64_t row = 0; row < unit; ++row, from += piece.size)
      std::copy_n(from, piece.size, whole.data() + row * tensor.shape[1] + piece.begin);
  }
  return whole;
}

}  // namespace switchyard::train
