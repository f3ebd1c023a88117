// SPDX-License-Identifier: Apache-2.0
// titan.js - the page that titand shows.
"use strict";
