# `cmake --install` installs the program, and the library for find_package(switchyard). Users include headers by the same
# paths as the sources do: "moe/runners/runner.h". examples/custom_runner is built against the installed library.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/switchyard)
configure_package_config_file(cmake/switchyardConfig.cmake.in ${CMAKE_BINARY_DIR}/switchyardConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/switchyardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT switchyard NAMESPACE switchyard:: DESTINATION ${config_dir} FILE switchyardTargets.cmake)
install(FILES ${CMAKE_BINARY_DIR}/switchyardConfig.cmake ${CMAKE_BINARY_DIR}/switchyardConfigVersion.cmake
  DESTINATION ${config_dir})
