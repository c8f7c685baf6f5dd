#include "engine/kv_cache/recorded_prefixes.h"

#include <algorithm>
#include <optional>

namespace switchyard {
namespace {

// For each page, whether the parents in the records lead from it to a page without parent.
class Chains {
 public:
  Chains(const PageRecords& records, int64_t num_pages)
      : records_(records), states_(num_pages, State::kUnknown) {
    for (int32_t page = 0; page < std::ssize(states_); ++page) Resolve(page);
  }
  bool Reaches(int32_t page) const { return states_[page] == State::kReaches; }

 private:
  enum class State : uint8_t { kUnknown, kOnPath, kReaches, kBroken };

  void Resolve(int32_t page) {
    path_.clear();
    State end = State::kBroken;
    for (int32_t next = page;;) {
      if (next == PageRecords::kNoParent) end = State::kReaches;
      if (next < 0 || next >= std::ssize(states_)) break;
      if (states_[next] != State::kUnknown) {  // kOnPath: a cycle
        if (states_[next] == State::kReaches) end = State::kReaches;
        break;
      }
      const auto record = records_.Get(next);
      if (!record || !FitsParent(*record)) {
        states_[next] = State::kBroken;
        break;
      }
      states_[next] = State::kOnPath;
      path_.push_back(next);
      next = record->parent;
    }
    for (const int32_t on_path : path_) states_[on_path] = end;
  }
  bool FitsParent(const PageRecords::Page& page) const {
    if (page.parent < 0 || page.parent >= std::ssize(states_)) return true;
    const auto parent = records_.Get(page.parent);
    return parent && parent->salt == page.salt;
  }

  const PageRecords& records_;
  std::vector<State> states_;
  std::vector<int32_t> path_;
};

}  // namespace

std::vector<RecordedPrefix> RecordedPrefixes(const PageRecords& records, int64_t num_pages) {
  const Chains chains(records, num_pages);
  std::vector<bool> has_child(num_pages, false);
  for (int32_t page = 0; page < num_pages; ++page) {
    if (!chains.Reaches(page)) continue;
    if (const int32_t parent = records.Get(page)->parent; parent >= 0) has_child[parent] = true;
  }
  std::vector<RecordedPrefix> prefixes;
  for (int32_t last = 0; last < num_pages; ++last) {
    if (!chains.Reaches(last) || has_child[last]) continue;
    RecordedPrefix& prefix = prefixes.emplace_back();
    prefix.salt = records.Get(last)->salt;
    for (int32_t page = last; page >= 0; page = records.Get(page)->parent)
      prefix.pages.push_back(page);
    std::ranges::reverse(prefix.pages);
    for (const int32_t page : prefix.pages) {
      const auto tokens = records.Get(page)->tokens;
      prefix.tokens.insert(prefix.tokens.end(), tokens.begin(), tokens.end());
    }
  }
  return prefixes;
}

}  // namespace switchyard
