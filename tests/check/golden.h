/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of outputs: {name, {unfused, fused}}. Made by check --print-golden. They change only with the order of operations
 * (docs/order.md). */
/* clang-format off */
static const golden golden_hashes[] = {
    {"decode", {0x8eac828a8151fa0c, 0x0258b110fde9e7dc}},
    {"decode-chunks", {0xb857894320dc048a, 0x0bfd2154de66b3f3}},
    {"prefill", {0x1f7639b1fc0a9752, 0x51cf64720bfbb16b}},
    {"prefill-chunks", {0xde8e37ede5e8d118, 0x8382504e2d98d8e5}},
    {"f16", {0x5ad03e6bc11bdfe7, 0xb5f8a8f34f63f123}},
    {"bf16", {0xb9b33be7320b8374, 0x2b8e001b79781af9}},
    {"window", {0xfbfba5f69fab9a87, 0x80f0b531255599a7}},
    {"large", {0x3b665eebb2d81c6a, 0x341a6643507eef3b}},
    {"rising", {0x9f965dc842baa52e, 0x75a1a7d2b7ecb2dc}},
    {"ties", {0x2bb046335930582e, 0x2bb046335930582e}},
    {"denormals", {0x117da2a2d72c5fba, 0x117da2a2d72c5fba}},
    {"scale-tiny", {0x44a4f86c5407a305, 0x44a4f86c5407a305}},
    {"masks", {0xbd68ab387b048a57, 0x532704e4574fb544}},
    {"softcap", {0x9afc13cdf6a79698, 0x8b0ef2833723005d}},
    {"alibi", {0x63a1c9e8cd358bdf, 0x95f4530a5948f144}},
    {"alibi-bias", {0x105b3a78b5564025, 0x67a717ab9a0bdf0e}},
    {"factors", {0x209cd47b536e50cb, 0xd65a6e197ca92ad9}},
    {"more-factors", {0x0a3c2ef1e09c8892, 0x6a39ef9798fad504}},
    {"position", {0x89e0a153833d38e2, 0xbe1ef677798f888f}},
    {"bytes", {0xc9c1d2648adce21e, 0x274b5f741477e1ee}},
    {"groups", {0x80e7820dd25db806, 0xd73d97e7ca0d6fd3}},
    {"mx", {0x9f4aff92b73b5f45, 0x92ce64a8e7d860ca}},
    {"wide", {0x290111bcd085f27d, 0xc4b4d071a9fa2dd6}},
    {"wide-decode", {0xb5040f8ca709b3d4, 0x0f9523ef6b1e4ba7}},
    {"weights", {0x09d763a485c06baa, 0x7f7c3b2e614ead41}},
    {"offsets", {0xf1fa0626f21a83b6, 0x516900c73230a89d}},
    {"integers", {0xbfaadd1578be8b87, 0xa9a49d1f4022bb4b}},
};
