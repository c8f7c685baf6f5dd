# XGrammar as a static library, from the sources that scripts/third_party.py put into build/third_party. Only the module
# grammar uses its headers. The options are the same in all presets, and no sanitizer is used. So the compiler cache has
# all objects after the first build, and a change of our sources never recompiles the library.
set(xgrammar_dir ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar)
if(NOT EXISTS ${xgrammar_dir}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "XGrammar's sources are missing: run scripts/setup, or scripts/third_party.py alone")
endif()

file(GLOB_RECURSE xgrammar_sources ${xgrammar_dir}/cpp/*.cc)
add_library(xgrammar STATIC ${xgrammar_sources})
target_include_directories(xgrammar SYSTEM
  PUBLIC $<BUILD_INTERFACE:${xgrammar_dir}/include> $<BUILD_INTERFACE:${xgrammar_dir}/3rdparty/dlpack/include>
  PRIVATE ${xgrammar_dir}/3rdparty/picojson)
# The module grammar defines the log functions (XGRAMMAR_LOG_CUSTOMIZE), so a warning about an ignored part of a grammar
# becomes an error of the request.
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(xgrammar PRIVATE -w)
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY "")
target_link_libraries(xgrammar PUBLIC Threads::Threads)
install(TARGETS xgrammar EXPORT switchyard)
install(FILES ${xgrammar_dir}/LICENSE ${xgrammar_dir}/NOTICE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/switchyard/xgrammar)
