// Requests of two servers, for tests of the transfer between them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "server/disaggregation/test_transfer.h"

namespace switchyard {

inline std::filesystem::path TransferFixture(const char* name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

inline TransferSetup SetupOf(const char* fixture, MeshShape from = {1, 1}, MeshShape to = {1, 1},
                             const char* backend = "tcp") {
  return {.prefill = {.model = TransferFixture(fixture), .mesh = from, .page_size = 8},
          .decode = {.model = TransferFixture(fixture), .mesh = to, .page_size = 4},
          .backend = backend};
}

inline RequestOutput PagesOutput(KvPages pages) {
  RequestOutput output;
  output.kv = std::move(pages);
  return output;
}

inline RequestOutput FirstOutput(int64_t end, std::vector<int32_t> pages, int32_t token = 7) {
  RequestOutput output =
      PagesOutput({.end = end, .pages = std::move(pages), .computed = end, .pinned = true});
  output.new_tokens = {token};
  output.cached_tokens = 3;
  return output;
}

inline void ExpectSameRows(TransferRig& rig, int from_group, std::span<const int32_t> from,
                           int to_group, std::span<const int32_t> to, int64_t begin, int64_t end) {
  const int64_t layers = rig.prefill.caches().format().num_layers();
  for (int64_t layer = 0; layer < layers; ++layer)
    ASSERT_EQ(rig.prefill.Read(from_group, layer, from, begin, end),
              rig.decode.Read(to_group, layer, to, begin, end))
        << "layer " << layer;
}

struct TransferLayout {
  MeshShape from, to;
  int from_group = 0, to_group = 0;
};

}  // namespace switchyard
