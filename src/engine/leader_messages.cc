#include "engine/leader_messages.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace switchyard {
namespace {

// Poll interval of an idle leader; of one that also polls whether other stages have work; and the
// time between the messages of a leader without work of its own to these stages.
constexpr std::chrono::milliseconds kIdleWait{1000}, kOthersWait{100}, kPace{1};

// Whether a message must not wait for the delay: it may end the delay, or the engine.
bool EndsDelay(const std::vector<ControlMessage>& messages) {
  return std::ranges::any_of(messages, [](const ControlMessage& message) {
    return std::holds_alternative<SetControls>(message) ||
           std::holds_alternative<AbortRequest>(message) ||
           std::holds_alternative<Shutdown>(message);
  });
}

}  // namespace

std::vector<ControlMessage> ReceiveMessages(bool busy, SymmetricMemory& memory,
                                            const RankLoopIo& io,
                                            std::chrono::duration<double> delay,
                                            const std::function<bool()>& others_busy) {
  using Clock = std::chrono::steady_clock;
  std::vector<ControlMessage> messages;
  const auto step = Clock::now() + std::chrono::duration_cast<Clock::duration>(delay);
  while (true) {
    memory.Beat();
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(step - Clock::now());
    const bool others = !busy && others_busy && others_busy();
    auto wait = kIdleWait;
    if (busy) {
      wait = std::clamp(rest, std::chrono::milliseconds(0), kIdleWait);
    } else if (others_busy) {
      wait = others ? kPace : kOthersWait;
    }
    for (ControlMessage& message : io.receive(wait)) messages.push_back(std::move(message));
    memory.CheckAborted();
    if (busy ? Clock::now() >= step || EndsDelay(messages) : others || !messages.empty())
      return messages;
  }
}

}  // namespace switchyard
