// The operations in a profile of a model on two ranks, for tests.
#pragma once

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/temporary_directory.h"
#include "model/test_layouts.h"
#include "profile/profiler.h"

namespace switchyard {

// Profiles one prefill of 24 rows, or one decode pass of 4 sequences. Returns the events of passes
// in each rank's profile.
inline std::vector<std::vector<nlohmann::json>> Profile(const std::string& fixture, bool decode,
                                                        bool two_batches, bool single_batch) {
  const TemporaryDirectory directory;
  const ModelConfig config = LoadModelConfig(Fixture(fixture));
  ModelOptions options{.dtype = DType::kF32, .max_tokens = 64};
  options.moe.a2a_backend = "deepep";
  options.moe.single_batch_overlap = single_batch;
  options.two_batch_overlap = two_batches;
  const MeshShape shape{.tp = 2, .ep = 2};
  std::vector<std::vector<nlohmann::json>> events(2);
  RunRankThreads(2, SymmetricBytesPerRank(config, options, shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   ThreadPool pool(1);
                   const auto comm = RankComm::Create(std::move(arena), shape, rank);
                   profile::Profiler profiler(rank, comm->mesh.Title());
                   ModelOptions own = options;
                   own.profiler = &profiler;
                   Model model(Fixture(fixture), config, own, *comm, pool);
                   Group texts = {{.tokens = Ids(11, 3)}, {.tokens = Ids(13, 5)}};
                   if (decode) texts.assign(4, {.tokens = Ids(7, 3), .chunk = 6, .decode_from = 6});
                   Sequences sequences(texts);
                   KvStorage kv(config, comm->mesh, sequences.num_pages(), kPageSize, DType::kF32);
                   model.Forward(sequences.Batch(0), kv);  // not recorded
                   profiler.Start({.dir = directory.path().string(), .name = fixture});
                   profile::Step step(&profiler);
                   const ForwardBatch& batch = sequences.Batch(decode ? 1 : 0);
                   model.Forward(batch, kv);
                   step.End(decode ? profile::Stage::kDecode : profile::Stage::kPrefill,
                            batch.num_tokens());
                   std::ifstream in(profiler.Stop()->files.at(0));
                   const nlohmann::json trace = nlohmann::json::parse(in);
                   for (const nlohmann::json& event : trace["traceEvents"])
                     if (event["ph"] == "X" && event["cat"] == "operation")
                       events[rank].push_back(event);
                 });
  return events;
}

// The name of an operation in a profile.
inline const char* NameOf(const schedule::Operation& o) {
  return o.kind == schedule::Kind::kForward ? Name(o.phase) : Name(o.kind);
}

}  // namespace switchyard
