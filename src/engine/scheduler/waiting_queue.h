// The queue of waiting requests, in admission order.
#pragma once

#include <cstddef>
#include <list>
#include <unordered_map>
#include <vector>

namespace switchyard {

struct Sequence;

// Adding and removing takes constant time, since disconnecting clients may remove tens of thousands
// of requests from the middle. Borrows the sequences. Single-threaded.
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
  // Returns false if the sequence is not in the queue.
  bool Remove(Sequence* sequence) {
    const auto place = places_.find(sequence);
    if (place == places_.end()) return false;
    order_.erase(place->second);
    places_.erase(place);
    return true;
  }
  std::vector<Sequence*> InOrder() const { return {order_.begin(), order_.end()}; }
  // `sequences`: a permutation of the queue. Takes linear time.
  void SetOrder(const std::vector<Sequence*>& sequences) {
    for (Sequence* sequence : sequences) order_.splice(order_.end(), order_, places_.at(sequence));
  }

 private:
  std::list<Sequence*> order_;
  std::unordered_map<Sequence*, std::list<Sequence*>::iterator> places_;
};

}  // namespace switchyard
