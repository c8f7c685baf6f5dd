// One-sided exchange: `--moe-a2a-backend flashinfer`.
#pragma once

#include "moe/backends.h"

namespace switchyard {

// Nobody writes into another rank's arena: a rank publishes in its own and raises flags, and
// whoever needs something pulls it from there.
//
// Dispatch: a source publishes its rows and their routing. Each rank reads the routing of all
// sources, finds the rows that its experts are to see, and pulls those. Combine: the experts' rank
// publishes one output for each (token, slot), packed source by source in the order of their
// tokens, and where each source's begin. The tokens' rank knows the order, so it adds the outputs
// up where they lie.
//
// There is no exchange of counts and nothing to agree on before rows move: one flag each way. A row
// is written once, whatever the number of ranks that take it, at the price of a read through the
// interconnect, which waits where a write does not. Own rows and outputs are not moved.
//
// Moved, for T tokens of hidden size H on each of P ranks: P · T · k ids to every rank; at most
// min(k, P) rows of H a token out; k rows of H a token back. Memory of each of the slots: T rows
// and T · k ids, and for outputs the worst case, (P − 1) · T · min(k, experts of a rank) rows (only
// what was once used is ever taken from the system). Pulled rows lie in the batch's handle.
//
// Results are those of deepep, bit for bit: experts see the same rows, and sums run in slot order.
// Idea: the MoE all-to-all of TensorRT-LLM and FlashInfer (flags that count rounds and are never
// cleared, a combine that pulls).
//
// Why nothing is overwritten too early (exchange_slots.h has the terms). A rank's published rows of
// round r are read by B before B raises its flag for the outputs of r, and the rank ends r only
// when it has seen that flag from every B; only then may it publish r + 1. B's outputs of round r
// are read by A before A ends r, thus before A raises its flag for the rows of r + 1, which B
// awaits before it writes outputs of r + 1.
//
// Batches carry at most `--deepep-normal-long-seq-per-round-tokens` tokens of a rank, like deepep's
// normal mode; longer ones go in rounds.
DispatcherBackend FlashInferBackend();

}  // namespace switchyard
