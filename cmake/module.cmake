# switchyard_module(NAME DEPS module... LIBS target... JSON)
#
# Builds one library from the folder src/NAME: every .cc file below it except tests and fuzzers. Each module has an
# include directory with a symbolic link to that module only. Only modules that list it in DEPS get this directory. So an
# include of any other module is a compile error, which prevents upward includes.
# Files named x_test.cc are compiled to the program NAME_test; each file named x_fuzz.cc is compiled to a fuzzer.
# Library and headers are installed, except helpers of tests (test*.h, fake_*.h).
# JSON selects the precompiled header with nlohmann/json.
# The target unit_tests builds all NAME_test programs, but not the CUDA ones. The sanitizers run them.
#
# Device code is a separate library, switchyard_NAME_device. It contains the folders `cuda` if SWITCHYARD_CUDA is on, else
# the stubs of the folders `no_cuda`. All other objects are the same in both builds. Its tests are NAME_cuda_test.
add_custom_target(unit_tests)

# ctest runs tests in the root of the sources, and they open tests/data by a relative path. So objects contain no absolute
# path, and all checkouts share the compiler cache.
set(SWITCHYARD_TEST_DATA_DEFINITION SWITCHYARD_TEST_DATA="tests/data")

# Test sources are compiled with -O0, which takes a third less time than -O1. The code under test keeps its own options.
set(SWITCHYARD_TEST_OPTIONS $<$<COMPILE_LANGUAGE:CXX>:-O0>)

# Compiles the target's sources with the sanitizers if the module is in SWITCHYARD_SANITIZE_MODULES, or if that is empty.
function(switchyard_sanitize TARGET MODULE)
  if(SWITCHYARD_SANITIZE AND (NOT SWITCHYARD_SANITIZE_MODULES OR MODULE IN_LIST SWITCHYARD_SANITIZE_MODULES))
    target_compile_options(${TARGET} PRIVATE ${SWITCHYARD_SANITIZE})
  endif()
endfunction()

# Creates one precompiled header for each set of flags: with or without gtest, nlohmann/json, sanitizers. It contains no
# absolute path, so that all checkouts share the compiler cache.
function(switchyard_precompile TARGET MODULE IS_TEST HAS_JSON)
  set(name switchyard_pch)
  set(headers <algorithm> <array> <atomic> <chrono> <cmath> <filesystem> <functional> <map> <memory> <mutex> <optional>
              <random> <span> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>
              <core/format.h>)
  if(HAS_JSON)
    string(APPEND name _json)
    list(APPEND headers <core/json.h>)
  endif()
  if(IS_TEST)
    string(APPEND name _test)
    list(APPEND headers <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  if(SWITCHYARD_SANITIZE AND (NOT SWITCHYARD_SANITIZE_MODULES OR MODULE IN_LIST SWITCHYARD_SANITIZE_MODULES))
    string(APPEND name _sanitized)
  endif()
  if(NOT TARGET ${name})
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/pch/${name}.cc CONTENT "// Source of the precompiled header.\n")
    add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/pch/${name}.cc)
    target_compile_features(${name} PUBLIC cxx_std_20)
    target_link_libraries(${name} PRIVATE fmt::fmt)
    target_include_directories(${name} PRIVATE ${CMAKE_BINARY_DIR}/include/core)
    if(IS_TEST)
      # The same definitions (GoogleTest's) and -fPIE as test programs; libraries have -fPIC. GCC ignores a precompiled
      # header with other flags.
      target_link_libraries(${name} PRIVATE GTest::gmock)
      target_compile_options(${name} PRIVATE -fPIE)
    endif()
    switchyard_sanitize(${name} ${MODULE})
    if(IS_TEST)
      target_compile_options(${name} PRIVATE ${SWITCHYARD_TEST_OPTIONS})
    endif()
    target_precompile_headers(${name} PRIVATE ${headers})
  endif()
  switchyard_sanitize(${TARGET} ${MODULE})  # the header and the sources that use it need the same flags
  target_precompile_headers(${TARGET} REUSE_FROM ${name})
endfunction()

# Adds sources to TARGET. With SWITCHYARD_UNITY, scripts/unite.py unites those without options of their own, for a faster
# build. Such options are set after the target is created, so this runs at the end of the directory.
function(switchyard_sources TARGET)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL switchyard_add_sources [[${TARGET}]] [[${ARGN}]])")
endfunction()

function(switchyard_add_sources TARGET SOURCES)
  set(alone)
  set(united)
  foreach(source ${SOURCES})
    get_filename_component(source ${source} ABSOLUTE)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(header ${source} HEADER_FILE_ONLY)
    if(NOT SWITCHYARD_UNITY OR NOT source MATCHES "^${CMAKE_SOURCE_DIR}/(src|apps|bench)/" OR options OR header)
      list(APPEND alone ${source})
    else()
      list(APPEND united ${source})
    endif()
  endforeach()
  if(united)
    execute_process(
      COMMAND ${PYTHON3} ${CMAKE_SOURCE_DIR}/scripts/unite.py --base ${CMAKE_SOURCE_DIR}/src --out ${CMAKE_BINARY_DIR}/unity
        --name ${TARGET} ${united}
      OUTPUT_VARIABLE united OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(REPLACE "\n" ";" united "${united}")
  endif()
  target_sources(${TARGET} PRIVATE ${alone} ${united})
  # GCC reports types of anonymous namespaces in named types unless they are in the main file.
  set_property(SOURCE ${united} APPEND PROPERTY COMPILE_OPTIONS
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
endfunction()

function(switchyard_test_program TARGET MODULE LIBRARY HAS_JSON)
  add_executable(${TARGET})
  switchyard_sources(${TARGET} ${ARGN})
  target_link_libraries(${TARGET} PRIVATE ${LIBRARY} GTest::gmock GTest::gtest_main)
  switchyard_precompile(${TARGET} ${MODULE} TRUE ${HAS_JSON})
  target_compile_options(${TARGET} PRIVATE ${SWITCHYARD_TEST_OPTIONS})
  target_compile_definitions(${TARGET} PRIVATE ${SWITCHYARD_TEST_DATA_DEFINITION})
  gtest_discover_tests(${TARGET} DISCOVERY_MODE PRE_TEST WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} PROPERTIES TIMEOUT 300)
endfunction()

# Adds a fuzz target. With SWITCHYARD_FUZZERS it uses libFuzzer. In builds with sanitizers it uses the driver of tests/fuzz
# and is not part of the target `all`: scripts/fuzz builds it.
function(switchyard_fuzzer SOURCE MODULE)
  if(NOT SWITCHYARD_FUZZERS AND NOT SWITCHYARD_SANITIZE)
    return()
  endif()
  get_filename_component(fuzzer ${SOURCE} NAME_WE)
  add_executable(${fuzzer} ${SOURCE})
  target_link_libraries(${fuzzer} PRIVATE switchyard_${MODULE})
  target_compile_definitions(${fuzzer} PRIVATE ${SWITCHYARD_TEST_DATA_DEFINITION})
  if(SWITCHYARD_FUZZERS)
    target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer)
    return()
  endif()
  if(NOT TARGET switchyard_fuzz_driver)
    add_library(switchyard_fuzz_driver OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/fuzz/driver.cc)
    target_compile_features(switchyard_fuzz_driver PUBLIC cxx_std_20)
    switchyard_sanitize(switchyard_fuzz_driver core)
  endif()
  target_link_libraries(${fuzzer} PRIVATE switchyard_fuzz_driver)
  switchyard_sanitize(${fuzzer} ${MODULE})
  set_target_properties(${fuzzer} PROPERTIES EXCLUDE_FROM_ALL ON)
endfunction()

function(switchyard_module NAME)
  cmake_parse_arguments(ARG "JSON" "" "DEPS;LIBS" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${NAME})
  set(view ${CMAKE_BINARY_DIR}/include/${NAME})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${dir} ${view}/${NAME} SYMBOLIC)

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  file(GLOB_RECURSE device_sources CONFIGURE_DEPENDS ${dir}/*.cu)
  set(device_tests ${sources})
  list(FILTER device_tests INCLUDE REGEX "/cuda/.*_test\\.cc$")
  set(device_hosts ${sources})
  if(SWITCHYARD_CUDA)
    list(FILTER device_hosts INCLUDE REGEX "/cuda/")
    list(FILTER device_hosts EXCLUDE REGEX "_test\\.cc$")
  else()
    list(FILTER device_hosts INCLUDE REGEX "/no_cuda/")
    set(device_sources)
  endif()
  list(APPEND device_sources ${device_hosts})
  list(FILTER sources EXCLUDE REGEX "/(no_)?cuda/")
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")

  list(TRANSFORM ARG_DEPS PREPEND switchyard_)
  add_library(switchyard_${NAME} STATIC)
  switchyard_sources(switchyard_${NAME} ${sources})
  add_library(switchyard::${NAME} ALIAS switchyard_${NAME})
  target_include_directories(switchyard_${NAME} PUBLIC
    $<BUILD_INTERFACE:${view}> $<INSTALL_INTERFACE:${SWITCHYARD_INCLUDE_DIR}>)
  target_compile_features(switchyard_${NAME} PUBLIC cxx_std_20)
  set_target_properties(switchyard_${NAME} PROPERTIES EXPORT_NAME ${NAME})
  install(TARGETS switchyard_${NAME} EXPORT switchyard)
  install(DIRECTORY ${dir} DESTINATION ${SWITCHYARD_INCLUDE_DIR} FILES_MATCHING PATTERN "*.h"
    PATTERN "test*.h" EXCLUDE PATTERN "fake_*.h" EXCLUDE)
  target_link_libraries(switchyard_${NAME} PUBLIC ${ARG_DEPS} ${ARG_LIBS})
  switchyard_precompile(switchyard_${NAME} ${NAME} FALSE ${ARG_JSON})

  if(device_sources)
    add_library(switchyard_${NAME}_device STATIC ${device_sources})
    set_target_properties(switchyard_${NAME}_device PROPERTIES EXPORT_NAME ${NAME}_device)
    install(TARGETS switchyard_${NAME}_device EXPORT switchyard)
    # The libraries depend on each other: host code creates devices, and device code uses the module's host code.
    target_link_libraries(switchyard_${NAME}_device PUBLIC switchyard_${NAME})
    target_link_libraries(switchyard_${NAME} PUBLIC $<LINK_ONLY:switchyard_${NAME}_device>)
    if(SWITCHYARD_CUDA)
      target_link_libraries(switchyard_${NAME}_device PUBLIC CUDA::cudart_static PRIVATE ${CMAKE_DL_LIBS})
      switchyard_precompile(switchyard_${NAME}_device ${NAME} FALSE FALSE)
    else()
      switchyard_sanitize(switchyard_${NAME}_device ${NAME})
    endif()
  endif()

  if(SWITCHYARD_TESTS AND tests)
    switchyard_test_program(${NAME}_test ${NAME} switchyard_${NAME} ${ARG_JSON} ${tests})
    add_dependencies(unit_tests ${NAME}_test)
  endif()
  if(SWITCHYARD_TESTS AND SWITCHYARD_CUDA AND device_tests)
    switchyard_test_program(${NAME}_cuda_test ${NAME} switchyard_${NAME}_device ${ARG_JSON} ${device_tests})
  endif()
  foreach(source ${fuzzers})
    switchyard_fuzzer(${source} ${NAME})
  endforeach()
endfunction()
