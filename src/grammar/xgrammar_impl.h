// XGrammar's objects that implement the classes of this module. Included by its sources only.
#pragma once

#include <xgrammar/xgrammar.h>

#include <utility>

#include "grammar/compiled_grammar.h"
#include "grammar/vocabulary.h"

namespace switchyard {

struct TokenTable::Impl {
  xgrammar::TokenizerInfo info;
};

struct CompiledGrammar::Impl {
  xgrammar::CompiledGrammar compiled;
};

// Limits XGrammar's recursion. JSON nests to 128 levels, and each level takes a few calls.
// XGrammar's default of 10,000 calls may exceed the stack of a thread.
void LimitRecursion();

}  // namespace switchyard
