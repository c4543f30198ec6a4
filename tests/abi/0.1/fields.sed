# SPDX-License-Identifier: Apache-2.0
# What tools/migrate leaves to a struct's own declaration: fields' names where they follow no dot.
s/([ *])map([,;])/\1block_mask\2/g
s/ rotary;/ rope;/
