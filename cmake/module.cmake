# switchyard_module(NAME DEPS module… LIBS target… HEAVY header…)
#
# One library for the folder src/NAME, from every .cc below it that is no test. A module's headers are found only
# through a folder that holds a link to that module alone, and that folder reaches those that name the module in
# DEPS: an include of a module that is not on the link line, upward ones above all, does not compile.
# Files named x_test.cc become the program NAME_test; files named x_fuzz.cc become one fuzzer each.
# Library and headers are installed, but for the tests' helpers (test*.h, fake_*.h).
# HEAVY headers are precompiled for library and tests, beside the ones that everybody includes.
# The target unit_tests builds all of these programs but the cuda ones: what the sanitizers run.
# What lies in a folder `cuda` is compiled where there is a compiler for it, and its tests are the program NAME_cuda_test;
# where there is none, what lies in a folder `no_cuda` takes its place.
add_custom_target(unit_tests)

function(switchyard_module NAME)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;HEAVY" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${NAME})
  set(view ${CMAKE_BINARY_DIR}/include/${NAME})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${dir} ${view}/${NAME} SYMBOLIC)

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  file(GLOB_RECURSE device_sources CONFIGURE_DEPENDS ${dir}/*.cu)
  set(device_tests ${sources})
  list(FILTER device_tests INCLUDE REGEX "/cuda/.*_test\\.cc$")
  if(SWITCHYARD_CUDA)
    list(FILTER sources EXCLUDE REGEX "/no_cuda/|/cuda/.*_test\\.cc$")
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/")
  endif()
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")

  list(TRANSFORM ARG_DEPS PREPEND switchyard_)
  add_library(switchyard_${NAME} STATIC ${sources})
  add_library(switchyard::${NAME} ALIAS switchyard_${NAME})
  target_include_directories(switchyard_${NAME} PUBLIC
    $<BUILD_INTERFACE:${view}> $<INSTALL_INTERFACE:${SWITCHYARD_INCLUDE_DIR}>)
  target_compile_features(switchyard_${NAME} PUBLIC cxx_std_20)
  set_target_properties(switchyard_${NAME} PROPERTIES EXPORT_NAME ${NAME})
  install(TARGETS switchyard_${NAME} EXPORT switchyard)
  install(DIRECTORY ${dir} DESTINATION ${SWITCHYARD_INCLUDE_DIR} FILES_MATCHING PATTERN "*.h"
    PATTERN "test*.h" EXCLUDE PATTERN "fake_*.h" EXCLUDE)
  target_link_libraries(switchyard_${NAME} PUBLIC ${ARG_DEPS} ${ARG_LIBS})
  if(SWITCHYARD_CUDA AND device_sources)
    target_sources(switchyard_${NAME} PRIVATE ${device_sources})
  endif()
  set(heavy <algorithm> <functional> <memory> <string> <vector> <fmt/format.h> ${ARG_HEAVY})
  target_precompile_headers(switchyard_${NAME} PRIVATE ${heavy})

  if(SWITCHYARD_TESTS AND tests)
    add_executable(${NAME}_test ${tests})
    target_link_libraries(${NAME}_test PRIVATE switchyard_${NAME} GTest::gmock GTest::gtest_main)
    target_precompile_headers(${NAME}_test PRIVATE ${heavy} <gmock/gmock.h> <gtest/gtest.h>)
    target_compile_definitions(${NAME}_test PRIVATE SWITCHYARD_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
    gtest_discover_tests(${NAME}_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 300)
    add_dependencies(unit_tests ${NAME}_test)
  endif()
  if(SWITCHYARD_TESTS AND SWITCHYARD_CUDA AND device_tests)
    add_executable(${NAME}_cuda_test ${device_tests})
    target_link_libraries(${NAME}_cuda_test PRIVATE switchyard_${NAME} GTest::gmock GTest::gtest_main)
    target_precompile_headers(${NAME}_cuda_test PRIVATE ${heavy} <gmock/gmock.h> <gtest/gtest.h>)
    gtest_discover_tests(${NAME}_cuda_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 300)
  endif()
  if(SWITCHYARD_FUZZERS)
    foreach(source ${fuzzers})
      get_filename_component(fuzzer ${source} NAME_WE)
      add_executable(${fuzzer} ${source})
      target_link_libraries(${fuzzer} PRIVATE switchyard_${NAME})
      target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer)
      target_compile_definitions(${fuzzer} PRIVATE SWITCHYARD_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
    endforeach()
  endif()
endfunction()
