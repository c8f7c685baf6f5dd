#include "comm/device/communicator.h"
#include "comm/device/staged_rounds.h"

namespace switchyard {

size_t RankComm::BytesPerRank(const MeshShape& shape) {
  const Mesh mesh(shape, 0);
  size_t bytes = 0;
  for (const int size : {mesh.tp(), mesh.ep(), mesh.moe_tp(), mesh.attn_tp()}) {
    if (size > 1) bytes += StagedRounds::BytesPerRank(size, Communicator::kStagingBytes);
  }
  if (mesh.pp() == 1) return bytes;
  for (const int size : {mesh.world(), mesh.pp()})
    bytes += StagedRounds::BytesPerRank(size, Communicator::kStagingBytes);
  return bytes;
}

std::unique_ptr<RankComm> RankComm::Create(std::shared_ptr<SharedArena> arena,
                                           const MeshShape& shape, int rank,
                                           SymmetricMemory::Options options) {
  auto comm = std::make_unique<RankComm>();
  comm->mesh = Mesh(shape, rank);
  comm->memory = std::make_unique<SymmetricMemory>(std::move(arena), rank, options);
  comm->tp = std::make_unique<Communicator>(*comm->memory, comm->mesh.TpGroup(), "tp");
  comm->ep = std::make_unique<Communicator>(*comm->memory, comm->mesh.EpGroup(), "ep");
  comm->moe_tp = std::make_unique<Communicator>(*comm->memory, comm->mesh.MoeTpGroup(), "moe-tp");
  comm->attn_tp =
      std::make_unique<Communicator>(*comm->memory, comm->mesh.AttnTpGroup(), "attn-tp");
  if (comm->mesh.pp() == 1) return comm;
  comm->world = std::make_unique<Communicator>(*comm->memory, comm->mesh.World(), "world");
  comm->pp = std::make_unique<Communicator>(*comm->memory, comm->mesh.PpGroup(), "pp");
  return comm;
}

}  // namespace switchyard
