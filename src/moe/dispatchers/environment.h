// SGLang's environment variables for the MoE path.
#pragma once

#include "moe/options.h"

namespace switchyard {

// Sets the options for which a variable of SGLang, or of DeepEP for Ascend in SGLang, is set. Call
// it before parsing flags, so that flags take precedence.
//
//   SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK   --num-max-dispatch-tokens-per-rank
//   SGLANG_DEEPEP_BF16_DISPATCH (1, true)            --deepep-dispatcher-output-dtype bf16
//   DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS          --deepep-normal-long-seq-per-round-tokens
//   DEEPEP_NORMAL_LONG_SEQ_ROUND                     --deepep-normal-long-seq-round
//   DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ (1, true)  one combine in each round of dispatch, not one
//                                                    combine after the last round
//   HCCL_BUFFSIZE, DEEPEP_HCCL_BUFFSIZE              maximum MiB of one exchange; the second
//                                                    variable takes precedence
//
// Error kInvalid names a variable with an unsupported value.
void ApplyMoeEnvironment(MoeOptions* options);

}  // namespace switchyard
