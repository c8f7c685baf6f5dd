// The reduced vocabulary of a draft model's head.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "model/config.h"

namespace switchyard {

// The token of each row of the head: of ModelConfig::reduced_head, or of an EAGLE3 head from the
// checkpoint's tensor d2t [draft_vocab]. Element i of d2t is the token of row i, minus i. Empty if
// the head has a row for each token. `read_data` false:
// the first tokens (dummy weights). Error kInvalid or kNotFound names the file: no tensor, another
// dtype or shape, tokens outside the vocabulary.
std::vector<int32_t> LoadDraftVocabulary(const std::filesystem::path& dir,
                                         const ModelConfig& config, bool read_data = true);

}  // namespace switchyard
