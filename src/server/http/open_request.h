// Counts open requests. Internal to this folder.
#pragma once

#include <atomic>
#include <cstddef>

namespace switchyard::http {

// RAII: counts a request as open while this object exists.
class OpenRequest {
 public:
  explicit OpenRequest(std::atomic<size_t>& count) : count_(count) { ++count_; }
  ~OpenRequest() { --count_; }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

 private:
  std::atomic<size_t>& count_;
};

}  // namespace switchyard::http
