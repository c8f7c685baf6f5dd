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

# Component `runtime`: the program and its data, without the library. Component `system` is for packages only: its paths
# are relative to /, and those of `runtime` to /usr (scripts/package).
foreach(file chat_template.jinja config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json)
  install(FILES ${CMAKE_SOURCE_DIR}/models/yardling/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard/models/yardling
    COMPONENT runtime)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/deploy/completion/switchyard.bash RENAME switchyard
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT runtime)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/completion/switchyard.zsh RENAME _switchyard
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT runtime)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/completion/switchyard.fish
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT runtime)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/switchyard@.service DESTINATION usr/lib/systemd/system
  COMPONENT system EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/yardling.yaml DESTINATION etc/switchyard COMPONENT system EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/debian/copyright ${CMAKE_SOURCE_DIR}/docs/install.md DESTINATION usr/share/doc/switchyard
  COMPONENT system EXCLUDE_FROM_ALL)
