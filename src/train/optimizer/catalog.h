// Catalog of all parameters of the model, over all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/device/collectives.h"
#include "train/gradients.h"
#include "train/parameter.h"

namespace switchyard::train {

// Gathers one string from each rank of `all`, in rank order. If `all` is null, there is a single
// rank. Collective.
std::vector<std::string> GatherStrings(Collectives* all, const std::string& mine);

// A tensor of the model. It has one piece for each tensor-parallel rank that holds a part of it.
struct CatalogTensor {
  struct Piece {
    // Range along `dimension`; the whole range if the tensor is not partitioned.
    int64_t begin = 0, size = 0;
    int owner = 0;  // the lowest rank that holds the piece
  };
  std::vector<int64_t> shape;  // shape of the whole tensor
  bool exact = false;          // as in Parameter
  int dimension = 0;           // partitioned dimension
  std::vector<Piece> pieces;   // ascending and contiguous
  int writer = 0;  // the rank that writes the tensor to files; it owns one of the pieces

  bool cut() const { return pieces.size() > 1; }
};

// Assigns an owner rank to each piece of a tensor. Several ranks hold the same piece if the tensor
// is replicated, or if the ranks are data-parallel copies. The lowest of these ranks is the owner,
// and only the owner counts the piece in sums. One of the owners writes the whole tensor to files;
// partitioned tensors are assigned to them in round-robin order. Built once, collectively by all
// ranks; immutable.
class Catalog {
 public:
  // Collective. Throws Error kInvalid, on every rank, if a name occurs twice on one rank, two ranks
  // have different shapes for a tensor, or pieces do not cover the whole. The arguments are
  // borrowed. `all`: all ranks; null: a single rank. `tp`: the tensor-parallel group, whose ranks
  // hold pieces in rank order; null: no tensor is partitioned. `copies`: the ranks with the other
  // shards of a parameter; needed if parameters have shards.
  Catalog(std::vector<Parameter<float>*> parameters, Collectives* all, Collectives* tp = nullptr,
          const GradientGroups& copies = {});

  const std::vector<Parameter<float>*>& parameters() const { return parameters_; }  // of this rank
  // The parameters that this rank owns (Piece::owner), sorted by name.
  const std::vector<Parameter<float>*>& owned() const { return owned_; }
  Collectives* all() const { return all_; }
  int rank() const { return all_ == nullptr ? 0 : all_->rank(); }
  int size() const { return all_ == nullptr ? 1 : all_->size(); }
  const GradientGroups& copies() const { return copies_; }
  // All tensors of all ranks, by name.
  const std::map<std::string, CatalogTensor>& tensors() const { return tensors_; }

  // `mine`: one number for each parameter of owned(). Returns the numbers of all pieces, ordered by
  // name and then by position in the tensor. This order does not depend on which ranks are owners.
  // Collective.
  std::vector<double> Gather(const std::vector<double>& mine) const;

  // Joins the shards of one of the moments of a parameter that has shards; `mine`: this rank's
  // shard. Returns the moment of this rank's part of the tensor. Collective over the copies.
  std::vector<float> GatherShards(const Parameter<float>& p, const std::vector<float>& mine) const;
  // Whether the writer of the tensor is in this rank's TP group. If so, all ranks of the group must
  // call Assemble.
  bool GroupWrites(const std::string& name) const;
  // Assembles a whole tensor from the parts of the ranks. `part` is this rank's part, with the
  // shape of p: the value of p, or one of its moments. Collective over the TP group. Returns the
  // tensor on its writer, and an empty vector on the other ranks.
  std::vector<float> Assemble(const Parameter<float>& p, const std::vector<float>& part) const;

 private:
  void Add(int rank, const std::string& entries);
  void CheckPieces() const;

  std::vector<Parameter<float>*> parameters_, owned_;
  std::map<std::string, CatalogTensor> tensors_;
  Collectives *all_, *tp_;
  GradientGroups copies_;
  std::vector<int> tp_members_;  // the ranks of the TP group, as ranks in `all`
};

}  // namespace switchyard::train
