/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of outputs: {name, {{unfused, fused} of exact arithmetic, the same of bf16}}. Made by check --print-golden. They
 * change only with the order of operations (docs/order.md). */
/* clang-format off */
static const golden golden_hashes[] = {
    {"decode", {{0x8eac828a8151fa0c, 0x0258b110fde9e7dc}, {0x98152623235c673b, 0x98152623235c673b}}},
    {"decode-chunks", {{0xb857894320dc048a, 0x0bfd2154de66b3f3}, {0xb0530cb1c9068f38, 0xceb80e0b669d5c79}}},
    {"prefill", {{0x1f7639b1fc0a9752, 0x51cf64720bfbb16b}, {0x36c9edd619e4e747, 0x57e350ebcf23f313}}},
    {"prefill-chunks", {{0xde8e37ede5e8d118, 0x8382504e2d98d8e5}, {0x4f1c345a822ae834, 0xfbedec0d276962b5}}},
    {"f16", {{0x5ad03e6bc11bdfe7, 0xb5f8a8f34f63f123}, {0xc737c653f87c5f84, 0xc737c653f87c5f84}}},
    {"bf16", {{0xb9b33be7320b8374, 0x2b8e001b79781af9}, {0xad52fe576fa3f86a, 0x0c3a07b20e969860}}},
    {"window", {{0xfbfba5f69fab9a87, 0x80f0b531255599a7}, {0xcba39deb819ea39a, 0xcba39deb819ea39a}}},
    {"large", {{0x3b665eebb2d81c6a, 0x341a6643507eef3b}, {0x52d49b7a3993dacf, 0x52d49b7a3993dacf}}},
    {"rising", {{0x9f965dc842baa52e, 0x75a1a7d2b7ecb2dc}, {0xb98fe7a69cd9401d, 0x3bf31fd515f13a60}}},
    {"ties", {{0x2bb046335930582e, 0x2bb046335930582e}, {0xe5d98e3b8558031d, 0xe5d98e3b8558031d}}},
    {"denormals", {{0x117da2a2d72c5fba, 0x117da2a2d72c5fba}, {0x09ad7dd225375d91, 0x09ad7dd225375d91}}},
    {"scale-tiny", {{0x44a4f86c5407a305, 0x44a4f86c5407a305}, {0xc7d2f4352b38be71, 0xc7d2f4352b38be71}}},
    {"masks", {{0xbd68ab387b048a57, 0x532704e4574fb544}, {0x4be8311aeccf5f18, 0x9fc87ed988a5a729}}},
    {"softcap", {{0x9afc13cdf6a79698, 0x8b0ef2833723005d}, {0xac7b7d9b6c06468f, 0xc5f9d70518d9bdad}}},
    {"alibi", {{0x63a1c9e8cd358bdf, 0x95f4530a5948f144}, {0x76fe45d5de153fc8, 0x1b9c7011e9277c51}}},
    {"alibi-bias", {{0x105b3a78b5564025, 0x67a717ab9a0bdf0e}, {0x14000e3828b9a9c5, 0x327fda24ed65ab94}}},
    {"factors", {{0x209cd47b536e50cb, 0xd65a6e197ca92ad9}, {0x9f6f65c015eb342a, 0x4f360ae759afb704}}},
    {"more-factors", {{0x0a3c2ef1e09c8892, 0x6a39ef9798fad504}, {0xcce4bddb40ea9588, 0x24f045c059dc1398}}},
    {"position", {{0x89e0a153833d38e2, 0xbe1ef677798f888f}, {0xbc6b9c0175f3f15e, 0x3ed30c13d2bae60e}}},
    {"bytes", {{0xc9c1d2648adce21e, 0x274b5f741477e1ee}, {0xf5c2125e8174b94b, 0x78d2c40bb23efd76}}},
    {"groups", {{0x80e7820dd25db806, 0xd73d97e7ca0d6fd3}, {0x5e429fca9393e9af, 0x5e429fca9393e9af}}},
    {"mx", {{0x9f4aff92b73b5f45, 0x92ce64a8e7d860ca}, {0xa1ec79acc01969be, 0xa1ec79acc01969be}}},
    {"wide", {{0x290111bcd085f27d, 0xc4b4d071a9fa2dd6}, {0xaa16767b786be82c, 0x035a832e1396278f}}},
    {"wide-decode", {{0xb5040f8ca709b3d4, 0x0f9523ef6b1e4ba7}, {0x65c901e1f86de17d, 0x65c901e1f86de17d}}},
    {"weights", {{0x09d763a485c06baa, 0x7f7c3b2e614ead41}, {0xfb87b6976ae59dbf, 0x98848bf2c12d1033}}},
    {"offsets", {{0xf1fa0626f21a83b6, 0x516900c73230a89d}, {0xc8893233dea08dd5, 0x4cd78b7dece12dc1}}},
    {"integers", {{0xbfaadd1578be8b87, 0xa9a49d1f4022bb4b}, {0x0000000000000000, 0x0000000000000000}}},
};
