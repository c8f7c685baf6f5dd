// What a server with --disaggregation-mode has in addition: one side of the transfer of KV caches.
#pragma once

#include <memory>
#include <string>

#include "server/args/args.h"
#include "server/disaggregation/kv_receiver.h"
#include "server/disaggregation/kv_sender.h"
#include "server/front/front.h"
#include "server/ranks/launch.h"

namespace switchyard {

// Has no effect with --disaggregation-mode null. Constructed before the ranks, and outlives them;
// but Stop precedes their destruction, because transfers send messages to them.
class Disaggregation {
 public:
  // Error kResource if the bootstrap port is in use.
  Disaggregation(const ServerArgs& args, const EnginePlan& plan, const Launch& launch,
                 Front& front);

  // Sets the memory of the ranks of the next epoch. Call it before these ranks run.
  void Use(const std::shared_ptr<SharedArena>& arena);
  void Stop();
  // The reason for which POST /scale_elastic_ep is refused; empty: the transfer of caches is no
  // reason to refuse it.
  std::string WhyScalingIsRefused() const;

 private:
  std::unique_ptr<KvSender> sender_;      // of a prefill worker, else null
  std::unique_ptr<KvReceiver> receiver_;  // of a decode worker, else null
};

}  // namespace switchyard
