// The layouts of deepep's modes: the routing data that accompanies dispatched rows. A layout adds
// its buffers to those of DispatchRows and CombinedRows. Internal to deepep.cc. Its functions:
// - Send writes the routing data of a batch to the ranks of its rows.
// - Receive copies it from the slot, and fills the tokens of the received rows.
// - Describe enters it into the result of dispatch.
// - Target gives the received row and the slot of each output.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "moe/backends.h"
#include "moe/dispatchers/combined_rows.h"
#include "moe/dispatchers/dispatch_rows.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/dispatchers/rounds.h"

namespace switchyard {

// Exact sizes, for batches of any size: `--deepep-mode normal`. A sender writes the metadata of
// each row to its destination: the token index and the local expert ids.
class NormalLayout {
 public:
  static constexpr DispatchLayout kLayout = DispatchLayout::kNormal;
  static constexpr char kName[] = "deepep normal";
  static PassRounds Rounds(const MoeOptions& options, const ExchangeShape& shape) {
    return RoundsOfPass(options, shape);
  }

  // Data of one batch.
  struct Routing {
    // [rows received, 1 + k]: token index at the source, then local expert ids.
    std::vector<int32_t> metadata;
  };

  NormalLayout(const ExchangeShape& shape, const DispatchRows& rows, BufferPlan* plan)
      : k_(shape.k),
        metadata_size_(1 + shape.k),
        capacity_(rows.capacity()),
        metadata_(plan->Add("tags", sizeof(int32_t) * metadata_size_ * shape.ep * capacity_)) {}

  void Send(ExchangeSlots& slots, const DispatchRows::Batch& sent, Routing* /*routing*/) const {
    const int me = slots.rank();
    for (int dest = 0; dest < slots.ranks(); ++dest) {
      if (dest == me) continue;
      const size_t offset = MetadataOffset(me);
      WriteMetadata(slots, sent, dest,
                    reinterpret_cast<int32_t*>(slots.At(sent.use, dest, offset)));
      slots.Wrote(sent.use, dest, offset, sent.counts[dest] * metadata_size_ * sizeof(int32_t));
    }
  }
  // `tokens`: maximum tokens of a source in this round.
  void Receive(const ExchangeSlots& slots, int64_t tokens, DispatchRows::Batch* sent,
               Routing* routing) const {
    const std::vector<int32_t>& begin = sent->begin;
    routing->metadata.resize(begin.back() * metadata_size_);
    for (int source = 0; source < slots.ranks(); ++source) {
      const int64_t rows = begin[source + 1] - begin[source];
      if (rows == 0) continue;
      int32_t* metadata = routing->metadata.data() + begin[source] * metadata_size_;
      int32_t* row_tokens = sent->tokens.data() + begin[source];
      if (source == slots.rank()) {
        WriteMetadata(slots, *sent, source, metadata);
      } else {
        std::memcpy(metadata, slots.Local(sent->use, MetadataOffset(source)),
                    rows * metadata_size_ * sizeof(int32_t));
      }
      for (int64_t n = 0; n < rows; ++n) {
        row_tokens[n] = metadata[n * metadata_size_];
        CHECK(row_tokens[n] >= 0 && row_tokens[n] < tokens);
      }
    }
  }
  void Describe(const ExchangeSlots& /*slots*/, const Routing& routing, Dispatched* in) const {
    in->topk_ids = routing.metadata.data() + 1;
    in->topk_stride = metadata_size_;
    in->k = k_;
  }
  void Target(const ExpertRows& experts, const DispatchRows::Batch& sent,
              const Routing& /*routing*/, std::vector<CombinedRows::Target>* targets) const {
    for (int32_t n = 0; n < sent.begin.back(); ++n)
      for (int32_t j = 0; j < k_; ++j)
        if (const int32_t r = experts.position[int64_t{n} * k_ + j]; r >= 0) (*targets)[r] = {n, j};
  }

 private:
  // Writes the metadata of all tokens that are sent to `dest`.
  void WriteMetadata(const ExchangeSlots& slots, const DispatchRows::Batch& sent, int dest,
                     int32_t* metadata) const {
    const int ranks = slots.ranks();
    const auto tokens = static_cast<int32_t>(sent.order.size() / ranks);
    for (int32_t t = 0; t < tokens; ++t) {
      const int64_t order = sent.order[int64_t{t} * ranks + dest];
      if (order < 0) continue;
      int32_t* entry = metadata + order * metadata_size_;
      entry[0] = t;
      const int32_t* owners = sent.owners.data() + int64_t{t} * k_;
      const int32_t* local_ids = sent.local_ids.data() + int64_t{t} * k_;
      for (int j = 0; j < k_; ++j) entry[1 + j] = owners[j] == dest ? local_ids[j] : -1;
    }
  }
  // Offset of the metadata that `source` sends.
  size_t MetadataOffset(int source) const {
    return metadata_ + source * capacity_ * metadata_size_ * sizeof(int32_t);
  }

  int k_;
  int64_t metadata_size_;  // 1 + k
  int64_t capacity_;
  size_t metadata_;  // [P sources, capacity, 1 + k] i32
};

// Fixed shapes, for decode: `--deepep-mode low_latency`. Rows arrive grouped by expert. For each
// expert and source rank, the arena of the expert's rank has `capacity` places and a count. The
// sender writes the index of a row to each place. The expert computes these rows. A masked runner
// therefore needs no routing data. The rows themselves are stored once for all ranks of a host
// (DispatchRows), not once per expert.
class LowLatencyLayout {
 public:
  static constexpr DispatchLayout kLayout = DispatchLayout::kLowLatency;
  static constexpr char kName[] = "deepep low_latency";
  static PassRounds Rounds(const MoeOptions& options, const ExchangeShape& shape) {
    const int64_t tokens =
        std::min<int64_t>(options.max_dispatch_tokens_per_rank, shape.max_tokens);
    return {.dispatch_tokens = tokens, .combine_tokens = tokens};
  }

  // Contents of a place.
  struct Place {
    int32_t row;     // index among the rows from the source to this rank
    int32_t output;  // OutputPlace of the output at the source
  };
  struct Routing {
    // Data to send: [P, E_local] number of rows for each expert; [P, E_local, capacity] places.
    std::vector<int32_t> expert_counts;
    std::vector<Place> places;
    // Received data. counts: [P sources, E_local] number of valid places. place_row and place_slot:
    // [E_local, P sources, capacity]. For each place they have the index of its row among all
    // received rows, and the slot of the row's token.
    std::vector<int32_t> counts, place_row, place_slot;
  };

  LowLatencyLayout(const ExchangeShape& shape, const DispatchRows& rows, BufferPlan* plan)
      : k_(shape.k),
        local_experts_(shape.local_experts),
        capacity_(rows.capacity()),
        expert_counts_(plan->Add("expert counts", sizeof(int32_t) * shape.ep * local_experts_)),
        places_(plan->Add("places", sizeof(Place) * local_experts_ * shape.ep * capacity_)) {}

  // Writes all counts in every round, including zeros, so that no count of an earlier round
  // remains.
  void Send(ExchangeSlots& slots, const DispatchRows::Batch& sent, Routing* routing) const {
    ListPlaces(slots, sent, routing);
    const int me = slots.rank();
    const auto write = [&](int dest, size_t offset, const auto* from, int64_t count) {
      if (count == 0) return;
      std::memcpy(slots.At(sent.use, dest, offset), from, count * sizeof *from);
      slots.Wrote(sent.use, dest, offset, count * sizeof *from);
    };
    for (int dest = 0; dest < slots.ranks(); ++dest) {
      const int32_t* counts = routing->expert_counts.data() + dest * local_experts_;
      write(dest, expert_counts_ + me * local_experts_ * sizeof *counts, counts, local_experts_);
      const Place* places = routing->places.data() + dest * local_experts_ * capacity_;
      for (int64_t e = 0; e < local_experts_; ++e)
        write(dest, places_ + FirstPlace(slots, e, me) * sizeof(Place), places + e * capacity_,
              counts[e]);
    }
  }
  void Receive(const ExchangeSlots& slots, int64_t tokens, DispatchRows::Batch* sent,
               Routing* routing) const {
    const int ranks = slots.ranks();
    const auto* counts = reinterpret_cast<const int32_t*>(slots.Local(sent->use, expert_counts_));
    const auto* places = reinterpret_cast<const Place*>(slots.Local(sent->use, places_));
    routing->counts.assign(counts, counts + ranks * local_experts_);
    routing->place_row.resize(FirstPlace(slots, local_experts_, 0));
    routing->place_slot.resize(routing->place_row.size());
    for (int source = 0; source < ranks; ++source) {
      int32_t* from_source = routing->counts.data() + source * local_experts_;
      if (!slots.Active(source)) std::fill_n(from_source, local_experts_, 0);
      for (int64_t e = 0; e < local_experts_; ++e) {
        CHECK(from_source[e] >= 0 && from_source[e] <= capacity_);
        const int64_t first = FirstPlace(slots, e, source);
        for (int64_t p = first; p < first + from_source[e]; ++p) {
          const int32_t row = sent->begin[source] + places[p].row;
          CHECK(places[p].row >= 0 && row < sent->begin[source + 1]);
          const int32_t token = places[p].output / k_;
          CHECK(token >= 0 && token < tokens);
          routing->place_row[p] = row;
          routing->place_slot[p] = places[p].output % k_;
          sent->tokens[row] = token;
        }
      }
    }
  }
  void Describe(const ExchangeSlots& slots, const Routing& routing, Dispatched* in) const {
    in->sources = slots.ranks();
    in->capacity = capacity_;
    in->counts = routing.counts.data();
    in->counts_stride = local_experts_;
    in->place_row = routing.place_row.data();
  }
  void Target(const ExpertRows& experts, const DispatchRows::Batch& /*sent*/,
              const Routing& routing, std::vector<CombinedRows::Target>* targets) const {
    for (int64_t i = 0; i < experts.num_places; ++i) {
      const int32_t place = experts.places[i];
      (*targets)[experts.place_rows[i]] = {routing.place_row[place], routing.place_slot[place]};
    }
  }

 private:
  void ListPlaces(const ExchangeSlots& slots, const DispatchRows::Batch& sent,
                  Routing* routing) const {
    const int64_t ranks = slots.ranks();
    routing->expert_counts.assign(ranks * local_experts_, 0);
    routing->places.resize(ranks * local_experts_ * capacity_);
    for (int32_t output = 0; output < static_cast<int32_t>(sent.owners.size()); ++output) {
      const int32_t owner = sent.owners[output];
      if (owner < 0) continue;
      const int64_t expert = owner * local_experts_ + sent.local_ids[output];
      const int32_t i = routing->expert_counts[expert]++;
      // An expert has at most as many rows as there are tokens, because a router selects an expert
      // at most once per token.
      CHECK_LT(i, capacity_);
      routing->places[expert * capacity_ + i] = {sent.order[output / k_ * ranks + owner], output};
    }
  }
  // Index of the first place of (expert, source).
  int64_t FirstPlace(const ExchangeSlots& slots, int64_t local_expert, int source) const {
    return (local_expert * slots.ranks() + source) * capacity_;
  }

  int k_;
  int64_t local_experts_, capacity_;
  size_t expert_counts_;  // [P sources, E_local] i32
  size_t places_;         // [E_local, P sources, capacity] Place
};

}  // namespace switchyard
