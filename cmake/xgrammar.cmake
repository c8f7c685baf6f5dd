# XGrammar as a static library, from the sources that scripts/third_party.py put into build/third_party. Only the module
# grammar uses its headers. The options and paths are the same in all presets, and no sanitizer is used. So the compiler
# cache has all objects after the first build, and a change of our sources never recompiles the library.
set(xgrammar_dir ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar)
if(NOT EXISTS ${xgrammar_dir}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "XGrammar's sources are missing: run scripts/setup, or scripts/third_party.py alone")
endif()

# Common headers take half of the compile time, so sources are united: 71 instead of 116 s of one core. Names of
# json_schema_converter.cc and of the converters for tags clash.
set(xgrammar_matching compiled_grammar earley_parser fsm grammar_compiler grammar_matcher suffix_automata testing
  tokenizer_info)
set(xgrammar_schemas json_schema_converter)
set(xgrammar_texts lark_converter structural_tag)
set(xgrammar_functors fsm_builder grammar_functor)
set(xgrammar_others config grammar grammar_builder grammar_parser grammar_printer regex_converter support/logging
  support/recursion_guard converter_ext/cohere converter_ext/deepseek converter_ext/glm converter_ext/kimi_k3
  converter_ext/minimax converter_ext/minimax_m3 converter_ext/qwen)
set(xgrammar_sources)
set(xgrammar_listed)
foreach(group matching schemas texts functors others)
  list(APPEND xgrammar_listed ${xgrammar_${group}})
  list(TRANSFORM xgrammar_${group} REPLACE "(.+)" "#include \"cpp/\\1.cc\"\n")
  list(JOIN xgrammar_${group} "" content)
  file(CONFIGURE OUTPUT ${xgrammar_dir}/united/${group}.cc CONTENT "${content}" @ONLY)
  list(APPEND xgrammar_sources ${xgrammar_dir}/united/${group}.cc)
endforeach()
file(GLOB_RECURSE xgrammar_all RELATIVE ${xgrammar_dir}/cpp ${xgrammar_dir}/cpp/*.cc)
list(TRANSFORM xgrammar_all REPLACE "\\.cc$" "")
list(REMOVE_ITEM xgrammar_all ${xgrammar_listed})
if(xgrammar_all)
  message(FATAL_ERROR "cmake/xgrammar.cmake: sources without a group: ${xgrammar_all}")
endif()

add_library(xgrammar STATIC ${xgrammar_sources})
target_include_directories(xgrammar SYSTEM
  PUBLIC $<BUILD_INTERFACE:${xgrammar_dir}/include> $<BUILD_INTERFACE:${xgrammar_dir}/3rdparty/dlpack/include>
  PRIVATE ${xgrammar_dir} ${xgrammar_dir}/3rdparty/picojson)
# The module grammar defines the log functions (XGRAMMAR_LOG_CUSTOMIZE), so a warning about an ignored part of a grammar
# becomes an error of the request.
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(xgrammar PRIVATE -w)
# Parsers run once per grammar. -O1 saves a tenth of their compile time.
set_source_files_properties(${xgrammar_dir}/united/schemas.cc ${xgrammar_dir}/united/texts.cc
  ${xgrammar_dir}/united/functors.cc ${xgrammar_dir}/united/others.cc PROPERTIES COMPILE_OPTIONS -O1)
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY "")
target_link_libraries(xgrammar PUBLIC Threads::Threads)
install(TARGETS xgrammar EXPORT switchyard)
install(FILES ${xgrammar_dir}/LICENSE ${xgrammar_dir}/NOTICE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/switchyard/xgrammar
  COMPONENT runtime)
