# The target xgrammar: the C++ core of xgrammar 0.2.8 (Apache 2.0), which turns grammars into masks
# over a vocabulary. Its own build adds Python bindings, LTO and -Werror; here it is one static
# library with our flags of a release in every preset, and the sanitizers where there are any.
#
# Without it there is no structured output: that is an error unless MOXIE_STRUCTURED_OUTPUT is OFF.
include(moxie_pypi)

set(MOXIE_HAS_XGRAMMAR 0)
if(MOXIE_STRUCTURED_OUTPUT)
  moxie_pypi_source(xgrammar 0.2.8
    8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80 moxie_xgrammar)
  if(NOT moxie_xgrammar)
    message(FATAL_ERROR
      "xgrammar, the library behind structured output, is not to be had: ${moxie_xgrammar_error}\n"
      "Put xgrammar-0.2.8.tar.gz (PyPI's source package) into build/downloads, or configure with "
      "-DMOXIE_STRUCTURED_OUTPUT=OFF: then requests for structured output are refused.")
  endif()
  set(MOXIE_HAS_XGRAMMAR 1)
endif()

if(MOXIE_HAS_XGRAMMAR)
  set(moxie_xgrammar_sources
    compiled_grammar.cc config.cc earley_parser.cc fsm.cc fsm_builder.cc grammar.cc
    grammar_builder.cc grammar_compiler.cc grammar_functor.cc grammar_matcher.cc grammar_parser.cc
    grammar_printer.cc json_schema_converter.cc lark_converter.cc regex_converter.cc
    structural_tag.cc suffix_automata.cc testing.cc tokenizer_info.cc
    converter_ext/cohere.cc converter_ext/deepseek.cc converter_ext/glm.cc
    converter_ext/kimi_k3.cc converter_ext/minimax.cc converter_ext/minimax_m3.cc
    converter_ext/qwen.cc support/logging.cc support/recursion_guard.cc)
  list(TRANSFORM moxie_xgrammar_sources PREPEND ${moxie_xgrammar}/cpp/)
  # A class of characters that follows a rule decides on ASCII by the low bytes of its ranges, so
  # that masks hold tokens that are refused then (a quote before [\uAC00-\uD7A3], whose low bytes
  # are 00 to A3). A copy in which the whole code points are compared is compiled instead.
  set(moxie_xgrammar_parser ${CMAKE_BINARY_DIR}/third_party/xgrammar_earley_parser.cc)
  file(READ ${moxie_xgrammar}/cpp/earley_parser.cc text)
  string(REGEX REPLACE "static_cast<uint8_t>\\((sub_sequence\\[i( \\+ 1)?\\])\\)" "\\1"
    corrected "${text}")
  if(corrected STREQUAL text)
    message(FATAL_ERROR "xgrammar's earley_parser.cc is not the one that this build corrects")
  endif()
  file(CONFIGURE OUTPUT ${moxie_xgrammar_parser} CONTENT "${corrected}" @ONLY)
  list(TRANSFORM moxie_xgrammar_sources REPLACE ".*/earley_parser\\.cc$" ${moxie_xgrammar_parser})
  add_library(xgrammar STATIC ${moxie_xgrammar_sources})
  target_include_directories(xgrammar PRIVATE ${moxie_xgrammar}/cpp)
  set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY "")
  target_include_directories(xgrammar SYSTEM PUBLIC ${moxie_xgrammar}/include
    ${moxie_xgrammar}/3rdparty/picojson ${moxie_xgrammar}/3rdparty/dlpack/include)
  target_compile_definitions(xgrammar
    PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
  target_compile_options(xgrammar PRIVATE -O2 -g0 -w)
  target_link_libraries(xgrammar PUBLIC Threads::Threads)
  # Not `undefined`: what that finds here is not ours to mend. Threads must be instrumented, or the
  # synchronisation inside is not seen.
  if(MOXIE_SANITIZE MATCHES "address")
    target_compile_options(xgrammar PRIVATE -fsanitize=address -fno-omit-frame-pointer)
  elseif(MOXIE_SANITIZE MATCHES "thread")
    target_compile_options(xgrammar PRIVATE -fsanitize=thread -fno-omit-frame-pointer)
  endif()
  if(MOXIE_FUZZ)
    target_compile_options(xgrammar PRIVATE -fsanitize=fuzzer-no-link,address)
  endif()
endif()
