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

// Which rank answers for which tensor. A tensor that several ranks hold (all those outside the
// experts; experts of a data-parallel copy) belongs to the lowest of them: it alone counts the
// tensor in sums and writes it to files. Built once, together by all ranks; immutable.
class Catalog {
 public:
  // Collective. Throws Error kInvalid, on every rank, where a name stands twice on one rank or two
  // ranks give a tensor different shapes. `parameters` and `all` (null: this rank is alone) are
  // borrowed.
  Catalog(std::vector<Parameter<float>*> parameters, Collectives* all);

  const std::vector<Parameter<float>*>& parameters() const { return parameters_; }  // of this rank
  const std::vector<Parameter<float>*>& owned() const { return owned_; }  // a subset, by name
  Collectives* all() const { return all_; }
  int rank() const { return all_ == nullptr ? 0 : all_->rank(); }
  int size() const { return all_ == nullptr ? 1 : all_->size(); }
  // Every tensor and its owner, in order of names.
  const std::map<std::string, int>& owners() const { return owners_; }

  // mine: one number for each of owned(). Returns those of every tensor, in order of names: the
  // same on all ranks, wherever tensors live. Collective.
  std::vector<double> Gather(const std::vector<double>& mine) const;

 private:
  std::vector<Parameter<float>*> parameters_, owned_;
  std::map<std::string, int> owners_;
  Collectives* all_;
};

}  // namespace switchyard::train
