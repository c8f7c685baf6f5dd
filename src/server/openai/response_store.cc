#include "server/openai/response_store.h"

#include <utility>

namespace switchyard::openai {

ResponseStore::ResponseStore() : ResponseStore(Limits()) {}

void ResponseStore::Put(const std::string& id, Entry entry) {
  std::lock_guard lock(mutex_);
  if (const auto old = by_id_.find(id); old != by_id_.end()) Remove(old->second);
  const size_t bytes = entry.Bytes();
  if (bytes > limits_.bytes || limits_.responses == 0) return;
  while (entries_.size() >= limits_.responses || bytes_ + bytes > limits_.bytes)
    Remove(entries_.begin());
  bytes_ += bytes;
  by_id_[id] = entries_.insert(entries_.end(), {id, std::move(entry)});
}

std::optional<ResponseStore::Entry> ResponseStore::Find(const std::string& id) const {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  return found->second->second;
}

bool ResponseStore::Erase(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  Remove(found->second);
  return true;
}

void ResponseStore::Remove(Entries::iterator entry) {
  bytes_ -= entry->second.Bytes();
  by_id_.erase(entry->first);
  entries_.erase(entry);
}

}  // namespace switchyard::openai
