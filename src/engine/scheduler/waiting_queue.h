// The requests that wait for a place, in the order of admission.
#pragma once

#include <cstddef>
#include <list>
#include <unordered_map>
#include <vector>

namespace switchyard {

struct Sequence;

// Every operation takes constant time: a client that leaves may take tens of thousands out of the
// middle. Borrows the sequences. One thread.
class WaitingQueue {
 public:
  bool Empty() const { return order_.empty(); }
  size_t size() const { return order_.size(); }
  Sequence* Front() const { return order_.front(); }

  void PushBack(Sequence* sequence) { places_[sequence] = order_.insert(order_.end(), sequence); }
  void PushFront(Sequence* sequence) {
    places_[sequence] = order_.insert(order_.begin(), sequence);
  }
  void PopFront() { Remove(Front()); }
  // False where it does not wait.
  bool Remove(Sequence* sequence) {
    const auto place = places_.find(sequence);
    if (place == places_.end()) return false;
    order_.erase(place->second);
    places_.erase(place);
    return true;
  }
  std::vector<Sequence*> InOrder() const { return {order_.begin(), order_.end()}; }
  // `sequences`: those that wait, each once. Takes time in proportion to their number.
  void SetOrder(const std::vector<Sequence*>& sequences) {
    for (Sequence* sequence : sequences) order_.splice(order_.end(), order_, places_.at(sequence));
  }

 private:
  std::list<Sequence*> order_;
  std::unordered_map<Sequence*, std::list<Sequence*>::iterator> places_;
};

}  // namespace switchyard
