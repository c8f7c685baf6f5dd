// The tokens that continue an output where its grammar leaves one continuation.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/compiled_grammar.h"

namespace switchyard {

// A guess of the next tokens, at most `most`. The forced text is divided into the longest tokens of
// the vocabulary, from left to right, as most tokenizers do with most texts. The model may tokenize
// it in another way. The last token is left out if the grammar also allows a longer token that
// begins with it. Tokens without text are included if they are the only ones allowed. Stop tokens
// are never included.
//
// Does not change the matcher's state, unless it throws the errors of GrammarMatcher. If no token
// is returned, `mask` becomes the mask of the next token, [MaskWords(vocab)]. It becomes empty if
// it was not needed or allows no token.
//
// Returns no tokens for a grammar with budgets (max_tokens, max_chars), because XGrammar cannot
// roll back the end of a rule at its budget.
std::vector<int32_t> ForcedTokens(GrammarMatcher& matcher, int64_t most,
                                  std::vector<uint32_t>* mask);

}  // namespace switchyard
