// The page's own checks: its types, by the TypeScript compiler, and its units, by Node's test runner.

import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const web = fileURLToPath(new URL('../web', import.meta.url));
const tests = readdirSync(join(web, 'test')).filter((name) => name.endsWith('.test.js'));

function run(program, args) {
  const { status, error } = spawnSync(program, args, { cwd: web, stdio: 'inherit' });
  if (error) throw error;
  if (status !== 0) process.exit(1);
}

run(process.execPath, [join(process.env.NODE_PACKAGES, 'node_modules/typescript/bin/tsc'), '--project', web]);
console.log('types: no errors');
run(process.execPath, ['--test', '--test-reporter=spec', ...tests.map((name) => join('test', name))]);
