// All parameters of the model, over all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/device/collectives.h"
#include "train/parameter.h"

namespace switchyard::train {

// Joins what every rank of `all` contributes, by rank; alone where it is null. Collective.
std::vector<std::string> GatherStrings(Collectives* all, const std::string& mine);

// A tensor of the model, in as many pieces as the ranks of a tensor-parallel group hold of it.
struct CatalogTensor {
  struct Piece {
    int64_t begin = 0, size = 0;  // along `dimension`; of a tensor that is not cut: all of it
    int owner = 0;                // the lowest rank that holds it
  };
  std::vector<int64_t> shape;  // of the whole
  bool learned = true;         // by gradients
  int dimension = 0;           // along which it is cut
  std::vector<Piece> pieces;   // ascending, next to one another
  int writer = 0;              // the rank that writes it to files: one of the owners

  bool cut() const { return pieces.size() > 1; }
};

// Which rank answers for which tensor. A piece that several ranks hold (what is not cut, outside
// the experts; all of a data-parallel copy) belongs to the lowest of them: it alone counts the
// piece in sums. Tensors that are cut are written by the owners of their pieces in turn. Built
// once, together by all ranks; immutable.
class Catalog {
 public:
  // Collective. Throws Error kInvalid, on every rank, where a name stands twice on one rank, two
  // ranks give a tensor different shapes, or pieces do not make a whole. `parameters`, `all` (null:
  // this rank is alone) and `tp` (its tensor-parallel group, whose ranks hold pieces in their
  // order; null: nothing is cut) are borrowed.
  Catalog(std::vector<Parameter<float>*> parameters, Collectives* all, Collectives* tp = nullptr);

  const std::vector<Parameter<float>*>& parameters() const { return parameters_; }  // of this rank
  // Whose pieces this rank owns: a subset, by name.
  const std::vector<Parameter<float>*>& owned() const { return owned_; }
  Collectives* all() const { return all_; }
  int rank() const { return all_ == nullptr ? 0 : all_->rank(); }
  int size() const { return all_ == nullptr ? 1 : all_->size(); }
  // Every tensor of every rank, by name.
  const std::map<std::string, CatalogTensor>& tensors() const { return tensors_; }

  // mine: one number for each of owned(). Returns those of every piece, in order of names and of
  // places in them: the same on all ranks, wherever pieces live. Collective.
  std::vector<double> Gather(const std::vector<double>& mine) const;

  // Whether a rank of this one's TP group writes the tensor: those ranks then call Assemble.
  bool GroupWrites(const std::string& name) const;
  // The whole tensor of which `part`, of p's shape, is what this rank has: p's value or one of its
  // moments. Collective over the TP group; only the writer gets it, others an empty vector.
  std::vector<float> Assemble(const Parameter<float>& p, const std::vector<float>& part) const;

 private:
  void Add(int rank, const std::string& entries);
  void CheckPieces() const;

  std::vector<Parameter<float>*> parameters_, owned_;
  std::map<std::string, CatalogTensor> tensors_;
  Collectives *all_, *tp_;
  std::vector<int> tp_members_;  // ranks of `all`
};

}  // namespace switchyard::train
