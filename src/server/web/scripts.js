// Scripts of others, which are no modules: loaded when they are first needed.

const loading = new Map();

export function load_script(name) {
  if (!loading.has(name)) {
    loading.set(name, new Promise((resolve, reject) => {
      const script = document.createElement('script');
      script.src = name;
      script.onload = resolve;
      script.onerror = () => {
        loading.delete(name);
        reject(new Error(`${name} could not be loaded`));
      };
      document.head.append(script);
    }));
  }
  return loading.get(name);
}
